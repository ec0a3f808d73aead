"""Which process runs where: pure rules, before and after Ray has chosen nodes.

    one node without GPUs   one slot on the driver's node runs everything
    else                    a slot per learner rank, per engine and per service that asks for some
                            devices or processors, with these; one on the driver's node for the
                            rest, and one per further node for agent workers; both also for copies
                            of the services that each node has, with what these ask for
    --colocate              a slot per engine, with the learner ranks that have its devices too
    placeholder groups      a slot per device, in which nothing runs; under --colocate the learner's
                            ranks alone

Slots that must share a node share a bundle, which Ray gives a node as a whole: the learner ranks of
`--actor-num-gpus-per-node`, and the devices of an engine or a service. An engine of more devices
than a node has is divided (`engine_parts`), and each part is placed like an engine. Ray may give
alike slots of a bundle any devices, and alike bundles any nodes: `in_order` says which slot takes
which place, so that ranks and engines count up with nodes and devices. Refused on several nodes is
a tensor-parallel group in several bundles that is no larger than the ranks of a node.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from agentrl.cluster.engine_parts import num_parts, part_names
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.packing import fits
from agentrl.cluster.service_copies import ServiceCopy, copies_of, room_beside, totals
from agentrl.config.engine_groups import (
    PLACEHOLDER,
    EngineGroup,
    PlannedEngine,
    attention_ranks,
    engines_of,
)
from agentrl.config.engine_settings import own_settings
from agentrl.config.engines import said_ranks
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError

__all__ = [
    "NodePlace",
    "Slot",
    "Supply",
    "bundle_sizes",
    "bundles_of",
    "in_order",
    "plan_slots",
]


class Supply(msgspec.Struct, frozen=True):
    """What a cluster has: devices of each node, the driver's first. A device is a GPU, or where
    models run on CPUs a processor. No node at all: one slot on the driver's node is enough."""

    device: Literal["GPU", "CPU"] = "CPU"
    of_nodes: tuple[int, ...] = ()


class Slot(msgspec.Struct, frozen=True):
    """A host's share of a node: its name, number of devices, and the kinds of the processes that
    belong to it, by their names. It is in a bundle (its number), or on a node (its number; 0 is the
    driver's). `num_cpus`: processors that are set aside for it beside devices that are none.
    `copies`: those of services that each node has, whose devices and processors are the slot's."""

    name: str
    size: int
    processes: dict[str, ProcessKind] = {}
    bundle: int | None = None
    node: int | None = 0
    num_cpus: int = 0
    copies: tuple[ServiceCopy, ...] = ()

    @property
    def needs_room(self) -> bool:
        """Whether Ray sets something aside for it."""
        return self.size > 0 or self.num_cpus > 0


class NodePlace(msgspec.Struct, frozen=True):
    """Where a host came to be: address and id of the node, and its devices there."""

    address: str
    node: str = ""
    devices: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[object, ...]:
        """Sorts by address, then by node and device; numbers in them count as numbers."""
        parts = [(len(part), part) for part in self.address.split(".")]
        return parts, self.node, [(len(device), device) for device in self.devices]

    def __str__(self) -> str:
        devices = f" (devices {', '.join(self.devices)})" if self.devices else ""
        return f"{self.address}{devices}"


def plan_slots(
    config: RunConfig,
    supply: Supply,
    services: Mapping[str, int],
    cpus: Mapping[str, int] = MappingProxyType({}),
    per_node: Collection[str] = (),
) -> list[Slot]:
    """Slots of a run. `services`: the GPUs of each, which it has where models run on GPUs. `cpus`:
    the processors of those that ask for some. `per_node`: services of which each node with agent
    workers has a copy.

    Raises EnvironmentSetupError for one that the cluster is too small for.
    """
    learners = config.learner_names
    engines = config.started_engines
    rest = _of("buffer", "buffer") | _of("router", *(["router"] if config.starts_router else []))
    if config.plays_only:  # what stands in for a learner needs no device
        learners, rest = [], _of("learner", *learners) | rest
    workers, of_evaluations = config.worker_names, config.eval_engines
    once = [name for name in services if name not in per_node]
    if not supply.of_nodes:
        apart = _of("eval-engine", *(engine.name for engine in of_evaluations))
        host = _of("engine", *engines) | _of("learner", *learners) | rest | apart
        host |= _of("worker", *workers) | _of("service", *once)
        return [_with_copies(Slot("host", 0, host), dict.fromkeys(per_node, 0), {})]
    groups, largest = config.engine_groups if engines else [], max(supply.of_nodes)
    _check_parts(config, groups, largest)
    if config.colocate:
        with_devices = _shared(learners, groups, largest)
    else:
        with_devices = [Slot(name, 1, _of("learner", name)) for name in learners]
        with_devices += _apart(groups, largest)
    sizes = {size for engine in engines_of(groups) for _, size in _parts(engine, largest)}
    bundled = _bundled(with_devices, config.actor_num_gpus_per_node, sizes, config.colocate)
    asking = {n: size for n, size in services.items() if size and supply.device == "GPU"}
    if supply.device == "CPU":  # processors are the devices
        asking, cpus = {n: cpus[n] for n in services if cpus.get(n)}, {}
    own = [name for name in once if asking.get(name) or cpus.get(name)]
    alone = [Slot(e.name, e.size, _of("eval-engine", e.name)) for e in of_evaluations]
    alone += [
        Slot(name, asking.get(name, 0), _of("service", name), num_cpus=cpus.get(name, 0))
        for name in own
    ]
    first = len(bundle_sizes(bundled))
    bundled += [
        msgspec.structs.replace(slot, bundle=first + index, node=None)
        for index, slot in enumerate(alone)
    ]
    here = _of("service", *(name for name in once if name not in own))
    copied = {name: asking.get(name, 0) for name in per_node}
    on_nodes = [
        _with_copies(slot, copied, cpus)
        for slot in _on_nodes(rest, workers, here, len(supply.of_nodes))
    ]
    copies = [slot.copies for slot in on_nodes]
    asking = {name: size for name, size in asking.items() if name in once}
    needed = sum(slot.size for slot in (*on_nodes, *bundled))
    _check_total(config, supply, needed, asking | totals(copies))
    _check_nodes(config, supply, max(bundle_sizes(bundled), default=0), asking)
    room = room_beside(copies, supply.of_nodes, supply.device)
    _check_packing(Supply(supply.device, room), bundle_sizes(bundled))
    _check_tensor_groups(config, supply, bundled)
    return [*on_nodes, *bundled]


def _on_nodes(
    rest: dict[str, ProcessKind],
    workers: Sequence[str],
    services: dict[str, ProcessKind],
    num_nodes: int,
) -> list[Slot]:
    """Slots without a bundle: the driver's, and those of agent workers on further nodes. `rest` and
    `services` are on the driver's too."""
    mine = rest | _of("worker", *workers[0::num_nodes]) | services
    return [Slot("host", 0, mine)] + [
        Slot(f"workers-{node}", 0, _of("worker", *workers[node::num_nodes]), node=node)
        for node in range(1, min(num_nodes, len(workers)))
    ]


def _with_copies(slot: Slot, services: Mapping[str, int], cpus: Mapping[str, int]) -> Slot:
    """A slot of a node with a copy of each of these services, and with the devices and processors
    of all of them."""
    copies = copies_of(slot.node or 0, services, cpus)
    return msgspec.structs.replace(
        slot,
        size=sum(copy.size for copy in copies),
        num_cpus=sum(copy.num_cpus for copy in copies),
        processes=slot.processes | _of("node-service", *(copy.process for copy in copies)),
        copies=copies,
    )


def _of(kind: ProcessKind, *names: str) -> dict[str, ProcessKind]:
    return dict.fromkeys(names, kind)


def _parts(engine: PlannedEngine, largest: int) -> list[tuple[str, int]]:
    """The parts of an engine, by name, and the devices of each."""
    count = num_parts(engine.size, largest)
    return [(name, engine.size // count) for name in part_names(engine.name, count)]


def _apart(groups: Sequence[EngineGroup], largest: int) -> list[Slot]:
    """Engines with devices of their own, and devices that stay empty."""
    parts = [part for engine in engines_of(groups) for part in _parts(engine, largest)]
    slots = [Slot(name, size, _of("engine", name)) for name, size in parts]
    empty = sum(group.num_gpus for group in groups if group.kind == PLACEHOLDER)
    return slots + [Slot(f"empty-{index}", 1) for index in range(empty)]


def _shared(learners: Sequence[str], groups: Sequence[EngineGroup], largest: int) -> list[Slot]:
    """Engines on the first devices of the learner: rank r has device r modulo the size of an engine
    in its slot, as it finds by itself. Ranks without an engine have slots of their own."""
    slots, left, names = [], list(learners), iter(engines_of(groups))
    for group in groups:
        for _ in range(group.num_engines):
            for name, size in _parts(next(names), largest):
                mine, left = left[:size], left[size:]
                slots.append(Slot(name, size, _of("engine", name) | _of("learner", *mine)))
        if group.kind == PLACEHOLDER:
            mine, left = left[: group.num_gpus], left[group.num_gpus :]
            slots += [Slot(name, 1, _of("learner", name)) for name in mine]
    return slots + [Slot(name, 1, _of("learner", name)) for name in left]


def _bundled(slots: Sequence[Slot], per_node: int, sizes: set[int], colocate: bool) -> list[Slot]:
    """Each slot with the number of its bundle: `per_node` devices of the learner at a time, and
    each engine by itself; whole engines where both have the same devices, alone where one number
    does not divide another. `sizes`: those of engines."""
    largest = max(sizes, default=1)
    whole = max(per_node, largest) if colocate else per_node
    if colocate and any(whole % size for size in {per_node, *sizes}):
        whole = largest
    found: list[Slot] = []
    bundle, room = -1, 0
    for slot in slots:
        alone = not colocate and "learner" not in slot.processes.values()
        if alone or room < slot.size:
            bundle, room = bundle + 1, 0 if alone else whole
        room -= 0 if alone else slot.size
        found.append(msgspec.structs.replace(slot, bundle=bundle, node=None))
    return found


def bundle_sizes(slots: Sequence[Slot]) -> list[int]:
    """Devices of each bundle."""
    sizes: dict[int, int] = {}
    for slot in slots:
        if slot.bundle is not None:
            sizes[slot.bundle] = sizes.get(slot.bundle, 0) + slot.size
    return [sizes[number] for number in sorted(sizes)]


def bundles_of(slots: Sequence[Slot], device: str) -> list[dict[str, int]]:
    """What Ray is asked for, for each bundle: devices, and processors beside them."""
    needs = [{device: size} if size else {} for size in bundle_sizes(slots)]
    for slot in slots:
        if slot.bundle is not None and slot.num_cpus:
            needs[slot.bundle]["CPU"] = slot.num_cpus
    return needs


def in_order(slots: Sequence[Slot], places: Sequence[NodePlace]) -> list[int]:
    """For each slot, which of the places it takes. The i-th place was given to the i-th slot; slots
    of as many devices change places in their bundle, and bundles of alike slots as wholes."""
    members: dict[int, list[int]] = {}
    for index, slot in enumerate(slots):
        if slot.bundle is not None:
            members.setdefault(slot.bundle, []).append(index)
    for indexes in members.values():
        indexes.sort(key=lambda i: (-slots[i].size, places[i].rank))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for bundle, indexes in members.items():
        alike.setdefault(tuple((slots[i].size, slots[i].num_cpus) for i in indexes), []).append(
            bundle
        )
    taken = list(range(len(slots)))
    for bundles in alike.values():
        by_place = sorted(bundles, key=lambda b: min(places[i].rank for i in members[b]))
        for to, come_from in zip(bundles, by_place, strict=True):
            receivers = sorted(members[to], key=lambda i: (-slots[i].size, i))
            for index, place in zip(receivers, members[come_from], strict=True):
                taken[index] = place
    return taken


def _check_total(
    config: RunConfig, supply: Supply, needed: int, services: Mapping[str, int]
) -> None:
    total = sum(supply.of_nodes)
    if needed <= total:
        return
    ranks = len(config.learner_names)
    join = ", and on the same devices " if config.colocate else " + "
    apart = sum(engine.size for engine in config.eval_engines)
    asked = f" + {apart} of evaluations" if apart else ""
    asked += "".join(f" + {gpus} of the service {name}" for name, gpus in services.items())
    raise EnvironmentSetupError(
        f"{needed} {supply.device}s are needed ({ranks} learner ranks{join}"
        f"{_engines_of(config)}{asked}) and the cluster has {total}; "
        "lower --actor-num-gpus-per-node or --rollout-num-gpus"
        + (", or give --device cpu" if supply.device == "GPU" else "")
    )


def _check_parts(config: RunConfig, groups: Sequence[EngineGroup], largest: int) -> None:
    """What an engine of several nodes cannot have."""
    for group in groups:
        if not group.num_engines or num_parts(group.size, largest) == 1:
            continue
        settings, reason = {**config.sglang, **own_settings(group.overrides)}, ""
        if attention_ranks(settings) > 1:
            reason = (
                f"{said_ranks(settings)}: SGLang would send pickled requests between the nodes "
                "without a key"
            )
        elif config.update_weight_mode == "delta":
            reason = "--update-weight-mode delta: the files of one host alone would be patched"
        if reason:
            raise EnvironmentSetupError(
                f"an engine of {group.size} devices is on several nodes, of which the largest has "
                f"{largest}; that cannot be with {reason}; leave it out, or make engines smaller"
            )


def _engines_of(config: RunConfig) -> str:
    """As in `2 engines x 4 + 1 engines x 2`."""
    groups = config.engine_groups if config.started_engines else []
    parts = [
        f"{group.num_gpus} empty"
        if group.kind == PLACEHOLDER
        else f"{group.num_engines} engines x {group.size}"
        for group in groups
    ]
    return " + ".join(parts) or "0 engines"


def _check_nodes(
    config: RunConfig, supply: Supply, needed: int, services: Mapping[str, int]
) -> None:
    sizes = {engine.size for engine in config.eval_engines}
    asked = "".join(f", an engine of evaluations {size}" for size in sizes)
    asked += "".join(f", the service {name} {gpus}" for name, gpus in services.items())
    if needed > max(supply.of_nodes):
        raise EnvironmentSetupError(
            f"{needed} {supply.device}s are needed on one node (--actor-num-gpus-per-node "
            f"{config.actor_num_gpus_per_node}{asked}), and the largest node has "
            f"{max(supply.of_nodes)}: give smaller numbers, and --actor-num-nodes for more nodes"
        )


def _check_packing(supply: Supply, sizes: Sequence[int]) -> None:
    if fits(sizes, supply.of_nodes):
        return
    bundles = ", ".join(f"{count} x {size}" for size, count in sorted(Counter(sizes).items()))
    raise EnvironmentSetupError(
        f"bundles of {supply.device}s that must each be on one node ({bundles}) do not fit nodes "
        f"of {', '.join(map(str, supply.of_nodes))}, however they are placed: give "
        "--actor-num-gpus-per-node and --rollout-num-gpus-per-engine that fill nodes"
    )


def _check_tensor_groups(config: RunConfig, supply: Supply, slots: Sequence[Slot]) -> None:
    """A tensor-parallel group of at most the ranks of a node is on one node: in one bundle."""
    tensor: int = config.megatron.get("tensor_model_parallel_size", 1)
    ranks = config.actor_num_gpus_per_node
    if len(supply.of_nodes) < 2 or not 1 < tensor <= ranks:
        return
    bundle_of = {name: slot.bundle for slot in slots for name in slot.processes}
    bundles = [bundle_of[name] for name in config.learner_names if name in bundle_of]
    for first in range(0, len(bundles), tensor):
        if len({*bundles[first : first + tensor]}) < 2:
            continue
        said = (
            f"--tensor-model-parallel-size {tensor}: ranks {first} to {first + tensor - 1} may "
            "come to be on several nodes, and every layer would wait for the network between them; "
        )
        if ranks % tensor == 0:
            sizes = sorted({engine.size for engine in engines_of(config.engine_groups)})
            raise EnvironmentSetupError(
                f"{said}engines of {', '.join(map(str, sizes))} devices do not divide the {ranks} "
                "ranks of a node (--actor-num-gpus-per-node), so each is placed with its own: give "
                f"engines of {_divisors(ranks)} devices (--rollout-num-gpus-per-engine)"
            )
        more = -(-ranks // tensor) * tensor
        number = f"{more - tensor} or {more}" if more <= max(supply.of_nodes) else more - tensor
        raise EnvironmentSetupError(
            f"{said}it does not divide the {ranks} ranks of a node: give --actor-num-gpus-per-node "
            f"{number}, or --tensor-model-parallel-size {_divisors(ranks)}"
        )


def _divisors(number: int) -> str:
    *most, last = (str(each) for each in range(1, number + 1) if number % each == 0)
    return f"{', '.join(most)} or {last}" if most else last
