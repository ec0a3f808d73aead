"""New addresses for processes whose slot was placed again, maybe on another node.

    engine      its URL: a port that is free there, in its command and where it says it is ready;
                of one on several nodes also where its ranks meet, of one that prefills where
                it hands caches on
    learner-0   where the ranks of the learner meet, and where pushes come from
    copies      of services that each node has: the URL of those that agent workers use there; one
                that is on its old node keeps it, because others may use it too

Nothing else is spoken to by an address of its own that can be placed again.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

import msgspec

from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.kinds import KINDS
from agentrl.cluster.orders import url_of
from agentrl.cluster.placement import Cluster
from agentrl.cluster.services import copy_there
from agentrl.cluster.spec import RunSpec
from agentrl.serving.engine_files import MEETING_PLACE
from agentrl.serving.launch import OWN_ADDRESS
from agentrl.types import EngineAddress

__all__ = ["at_url", "moved"]

_FIRST_RANK = "learner-0"
#: The flag with the port at which an engine that prefills hands caches on.
_BOOTSTRAP = "--disaggregation-bootstrap-port"


def moved(
    spec: RunSpec, orders: Mapping[str, ProcessOrder], names: Collection[str], cluster: Cluster
) -> tuple[RunSpec, dict[str, ProcessOrder]]:
    """What the run is told, and its orders, once `names` are where the cluster says that they are
    now. Reserves ports there; raises SlotLostError."""
    told = dict(orders)
    serving = [name for name in names if KINDS[orders[name].kind].serves]
    urls = {name: url_of(cluster, name) for name in serving if name not in spec.copies}
    spec = _with_copies(spec, names, told, cluster)
    engines, of_evaluations = (
        [_moved(engine, urls, told, cluster) for engine in among]
        for among in (spec.engines, spec.eval_engines)
    )
    spec = msgspec.structs.replace(spec, engines=engines, eval_engines=of_evaluations)
    if _FIRST_RANK in names:
        address = cluster.address_of(_FIRST_RANK)
        port = cluster.reserve_port(_FIRST_RANK)
        spec = msgspec.structs.replace(
            spec,
            master_address=address,
            master_port=port,
            collective_address=address,
            push_ports=[cluster.reserve_port(_FIRST_RANK) for _ in spec.push_ports],
        )
    return spec, told


def _with_copies(
    spec: RunSpec, names: Collection[str], told: dict[str, ProcessOrder], cluster: Cluster
) -> RunSpec:
    """With the copies that agent workers of `names` use now, at their addresses."""
    used = {name: cluster.copies_for(name) for name in spec.copies_used if name in names}
    copies = dict(spec.copies)
    for name in {copy for its in used.values() for copy in its} & {*names}:
        if cluster.port_held(name) is None:
            copies[name] = msgspec.structs.replace(copies[name], url=url_of(cluster, name))
            told[name] = copy_there(told[name], copies[name])
    return msgspec.structs.replace(spec, copies=copies, copies_used=spec.copies_used | used)


def _moved(
    engine: EngineAddress,
    urls: Mapping[str, str],
    told: dict[str, ProcessOrder],
    cluster: Cluster,
) -> EngineAddress:
    """Where an engine is now, with the orders of its parts in `told`."""
    parts = [name for name in told if engine_of(name) == engine.name]
    for name in parts:
        if name in urls:
            told[name] = at_url(told[name], engine.url, urls[name])
    if engine.name not in urls:
        return engine
    engine = msgspec.structs.replace(engine, url=urls[engine.name])
    if engine.bootstrap_port is not None:
        port = cluster.reserve_port(engine.name)
        engine = msgspec.structs.replace(engine, bootstrap_port=port)
        for name in parts:
            told[name] = _with_values(told[name], {_BOOTSTRAP: str(port)})
    if len(parts) > 1:
        address, port = cluster.address_of(engine.name), cluster.reserve_port(engine.name)
        for name in parts:
            told[name] = _meeting(told[name], f"{address}:{port}")
    return engine


def at_url(order: ProcessOrder, old: str, new: str) -> ProcessOrder:
    """The order of a server that is to listen at `new` and no longer at `old`: its command names
    both parts of the address, each after its flag."""
    place = urlsplit(new)
    told = _with_values(order, {"--host": str(place.hostname), "--port": str(place.port)})
    env = order.env | ({OWN_ADDRESS: str(place.hostname)} if OWN_ADDRESS in order.env else {})
    ready = order.ready_url and order.ready_url.replace(old, new, 1)
    return msgspec.structs.replace(told, env=env, ready_url=ready)


def _meeting(order: ProcessOrder, meets_at: str) -> ProcessOrder:
    """The order of a part of an engine whose ranks meet there now."""
    told = _with_values(order, {"--dist-init-addr": meets_at})
    return msgspec.structs.replace(told, env=order.env | {MEETING_PLACE: f"tcp://{meets_at}"})


def _with_values(order: ProcessOrder, values: Mapping[str, str]) -> ProcessOrder:
    """With other values behind flags of its command."""
    argv = [
        values.get(flag, word) for flag, word in zip(("", *order.argv), order.argv, strict=False)
    ]
    return msgspec.structs.replace(order, argv=tuple(argv))
