"""New addresses for processes whose slot was placed again, maybe on another node.

    engine      its URL: a port that is free there, in its command and where it says it is ready
    learner-0   where the ranks of the learner meet, and where pushes come from

Nothing else is spoken to by an address of its own that can be placed again.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

import msgspec

from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.placement import Cluster
from agentrl.cluster.spec import RunSpec

__all__ = ["at_url", "moved"]

_FIRST_RANK = "learner-0"


def moved(
    spec: RunSpec, orders: Mapping[str, ProcessOrder], names: Collection[str], cluster: Cluster
) -> tuple[RunSpec, dict[str, ProcessOrder]]:
    """What the run is told, and its orders, once `names` are where the cluster says that they are
    now. Reserves ports there; raises SlotLostError."""
    told = dict(orders)
    engines = []
    for engine in spec.engines:
        if engine.name in names:
            url = f"http://{cluster.address_of(engine.name)}:{cluster.reserve_port(engine.name)}"
            told[engine.name] = at_url(orders[engine.name], engine.url, url)
            engine = msgspec.structs.replace(engine, url=url)
        engines.append(engine)
    spec = msgspec.structs.replace(spec, engines=engines)
    if _FIRST_RANK in names:
        address = cluster.address_of(_FIRST_RANK)
        port = cluster.reserve_port(_FIRST_RANK)
        spec = msgspec.structs.replace(
            spec, master_address=address, master_port=port, collective_address=address
        )
    return spec, told


def at_url(order: ProcessOrder, old: str, new: str) -> ProcessOrder:
    """The order of a server that is to listen at `new` and no longer at `old`: its command names
    both parts of the address, each after its flag."""
    place = urlsplit(new)
    values = {"--host": str(place.hostname), "--port": str(place.port)}
    argv = [
        values.get(flag, word) for flag, word in zip(("", *order.argv), order.argv, strict=False)
    ]
    ready = order.ready_url.replace(old, new, 1)
    return msgspec.structs.replace(order, argv=tuple(argv), ready_url=ready)
