"""Which slots a run has, and which place each takes once Ray has chosen nodes and devices."""

import itertools
import random
import socket
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cluster.dry_placement import placed, placement_notes
from agentrl.cluster.engine_parts import num_parts
from agentrl.cluster.packing import fits
from agentrl.cluster.slots import (
    NodePlace,
    Slot,
    Supply,
    bundle_sizes,
    in_order,
    plan_slots,
)
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError
from tests.unit.slot_plans import devices_of, gpus

NODES = Supply("GPU", (8, 8, 8))


def test_one_node_without_gpus_runs_everything_in_one_slot() -> None:
    config = RunConfig(actor_num_gpus_per_node=2, rollout_num_gpus=2)
    (slot,) = plan_slots(config, Supply(), {"search": 0})
    assert slot.size == 0
    assert {"learner-1", "engine-1", "buffer", "router", "worker-0", "search"} <= {*slot.processes}


def test_ranks_of_a_node_share_a_bundle_and_each_engine_has_its_own() -> None:
    config = RunConfig(
        actor_num_nodes=2,
        actor_num_gpus_per_node=4,
        rollout_num_gpus=8,
        rollout_num_gpus_per_engine=4,
    )
    slots = plan_slots(config, NODES, {})
    assert devices_of(slots) == {
        **{f"learner-{rank}": (1, rank // 4) for rank in range(8)},
        "engine-0": (4, 2),
        "engine-1": (4, 3),
    }
    assert bundle_sizes(slots) == [4, 4, 4, 4]
    assert slots[0].node == 0, "the rest is on the driver's node"


def test_colocated_engines_share_the_bundle_of_their_ranks() -> None:
    config = RunConfig(
        colocate=True,
        actor_num_nodes=2,
        actor_num_gpus_per_node=8,
        rollout_num_gpus_per_engine=4,
    )
    slots = plan_slots(config, NODES, {})
    assert devices_of(slots) == {f"engine-{i}": (4, i // 2) for i in range(4)}
    assert bundle_sizes(slots) == [8, 8]


def test_an_engine_of_more_devices_than_a_node_has_is_in_equal_parts() -> None:
    config = RunConfig(
        actor_num_gpus_per_node=8, rollout_num_gpus=32, rollout_num_gpus_per_engine=16
    )
    slots = plan_slots(config, gpus(8, 8, 8, 8, 8), {})
    assert devices_of(slots) == {
        **{f"learner-{rank}": (1, 0) for rank in range(8)},
        "engine-0": (8, 1),
        "engine-0.1": (8, 2),
        "engine-1": (8, 3),
        "engine-1.1": (8, 4),
    }
    engines = [slot for slot in slots if "engine" in slot.name]
    places = [NodePlace(f"10.0.0.{9 - index}") for index in range(4)]
    taken = [places[index].address for index in in_order(engines, places)]
    assert taken == sorted(taken), "its ranks count up with nodes"


def test_parts_of_colocated_engines_have_the_ranks_of_their_node() -> None:
    config = RunConfig(
        colocate=True,
        actor_num_nodes=2,
        actor_num_gpus_per_node=8,
        rollout_num_gpus_per_engine=16,
    )
    slots = plan_slots(config, gpus(8, 8), {})
    assert devices_of(slots) == {"engine-0": (8, 0), "engine-0.1": (8, 1)}
    ranks = [f"learner-{rank}" for rank in range(16)]
    first, second = (slot.processes for slot in slots if slot.size)
    assert [*first] == ["engine-0", *ranks[:8]]
    assert [*second] == ["engine-0.1", *ranks[8:]]


@pytest.mark.parametrize(
    ("size", "largest", "parts"), [(4, 8, 1), (16, 8, 2), (6, 4, 2), (7, 4, 7), (2, 1, 2)]
)
def test_parts_are_as_few_as_fit_nodes(size: int, largest: int, parts: int) -> None:
    assert num_parts(size, largest) == parts


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"sglang": {"enable_dp_attention": True, "dp_size": 8}}, "--sglang-dp-size"),
        ({"sglang": {"attn_dp_size": 2}}, "--sglang-attn-dp-size"),
        ({"update_weight_mode": "delta"}, "--update-weight-mode delta"),
    ],
)
def test_what_an_engine_of_several_nodes_cannot_have_is_refused(
    flags: dict[str, Any], named: str
) -> None:
    config = RunConfig(rollout_num_gpus=16, rollout_num_gpus_per_engine=16, **flags)
    words = f"an engine of 16 devices .* of which the largest has 8; that cannot be with {named}"
    with pytest.raises(EnvironmentSetupError, match=words):
        plan_slots(config, NODES, {})
    plan_slots(config, gpus(8, 16), {})


def test_agent_workers_are_spread_over_the_nodes() -> None:
    config = RunConfig(num_agent_workers=5)
    slots = {slot.name: slot for slot in plan_slots(config, NODES, {})}
    assert {"worker-0", "worker-3"} <= {*slots["host"].processes}
    others = [slots["workers-1"], slots["workers-2"]]
    assert [slot.node for slot in others] == [1, 2]
    assert [[*slot.processes] for slot in others] == [["worker-1", "worker-4"], ["worker-2"]]


def test_engines_of_evaluations_have_bundles_of_their_own() -> None:
    config = RunConfig(
        actor_num_gpus_per_node=1,
        rollout_num_gpus=2,
        rollout_num_gpus_per_engine=2,
        eval_interval=5,
        eval_mode="apart",
        eval_num_engines=2,
    )
    slots = plan_slots(config, NODES, {"search": 1})
    assert devices_of(slots) == {
        "learner-0": (1, 0),
        "engine-0": (2, 1),
        "eval-engine-0": (2, 2),
        "eval-engine-1": (2, 3),
        "search": (1, 4),
    }
    (slot,) = plan_slots(config, Supply(), {})
    assert {"eval-engine-0", "eval-engine-1"} <= {*slot.processes}
    with pytest.raises(EnvironmentSetupError, match=r"7 GPUs are needed.* \+ 4 of evaluations"):
        plan_slots(config, gpus(6), {})


def test_slots_say_the_kinds_of_their_processes_whatever_those_are_called() -> None:
    flags: dict[str, Any] = {"eval_interval": 5, "eval_mode": "apart"}
    config = RunConfig(actor_num_gpus_per_node=1, rollout_num_gpus=1, **flags)
    kinds = {
        "engine-0": "engine",
        "eval-engine-0": "eval-engine",
        "learner-0": "learner",
        "buffer": "buffer",
        "router": "router",
        "learner-of-words": "service",
        "engine-search": "service",
    } | dict.fromkeys(config.worker_names, "worker")
    for supply in (Supply(), gpus(8)):
        slots = plan_slots(config, supply, {"learner-of-words": 2, "engine-search": 0})
        told = {name: kind for slot in slots for name, kind in slot.processes.items()}
        assert told == kinds


def test_processors_count_where_nodes_have_no_gpus() -> None:
    config = RunConfig(actor_num_gpus_per_node=2, rollout_num_gpus=1)
    assert bundle_sizes(plan_slots(config, Supply("CPU", (2, 2)), {})) == [2, 1]
    said = r"3 CPUs are needed .* the cluster has 2; lower [^;]* or --rollout-num-gpus$"
    with pytest.raises(EnvironmentSetupError, match=said):
        plan_slots(config, Supply("CPU", (1, 1)), {})


def test_a_node_that_is_too_small_is_told_before_ray_waits_for_it() -> None:
    config = RunConfig(actor_num_gpus_per_node=8, rollout_num_gpus=1)
    with pytest.raises(EnvironmentSetupError, match=r"8 GPUs are needed on one node .* has 4"):
        plan_slots(config, gpus(4, 4, 4), {})


CONFIGS: list[dict[str, Any]] = [
    {"actor_num_nodes": 2, "actor_num_gpus_per_node": 8, "rollout_num_gpus": 8},
    {
        "actor_num_nodes": 4,
        "actor_num_gpus_per_node": 2,
        "rollout_num_gpus": 16,
        "rollout_num_gpus_per_engine": 4,
    },
    {
        "colocate": True,
        "actor_num_nodes": 3,
        "actor_num_gpus_per_node": 8,
        "rollout_num_gpus_per_engine": 2,
    },
]


@pytest.mark.parametrize("values", CONFIGS)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_ray_chooses_slots_count_up_with_nodes_and_devices(
    values: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    slots = plan_slots(RunConfig(**values), NODES, {})
    places = _chosen(slots, draw)
    taken = in_order(slots, places)
    assert sorted(taken) == list(range(len(slots))), "each place is taken once"
    assert all(slots[i].size == slots[taken[i]].size for i in range(len(slots)))
    of = {slot.name: places[index] for slot, index in zip(slots, taken, strict=True)}
    alike: dict[int, list[Slot]] = {}
    for slot in slots:
        if slot.size:
            alike.setdefault(slot.size, []).append(slot)
    for before, after in (pair for some in alike.values() for pair in pairwise(some)):
        first, second = of[before.name], of[after.name]
        if before.bundle == after.bundle:
            assert first.node == second.node
        if before.bundle == after.bundle or before.name[:-1] == after.name[:-1] == "engine-":
            assert first.rank < second.rank


def _chosen(slots: list[Slot], draw: random.Random) -> list[NodePlace]:
    """As Ray may: bundles on any nodes with room, any free devices for each slot."""
    free = {f"10.0.0.{n}": [str(d) for d in range(8)] for n in (2, 10, 9)}
    room = dict.fromkeys(free, 8)
    nodes: dict[int | None, str] = {None: "10.0.0.2"}
    sizes = bundle_sizes(slots)
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        nodes[number] = draw.choice([n for n, left in room.items() if left >= sizes[number]])
        room[nodes[number]] -= sizes[number]
    places = []
    for slot in slots:
        node = nodes[slot.bundle]
        mine = draw.sample(free[node], slot.size)
        free[node] = [d for d in free[node] if d not in mine]
        places.append(NodePlace(node, node, tuple(sorted(mine))))
    return places


def test_addresses_and_devices_sort_as_numbers() -> None:
    places = [
        NodePlace("10.0.0.10"),
        NodePlace("10.0.0.9", devices=("10",)),
        NodePlace("10.0.0.9", devices=("9",)),
    ]
    assert [str(p) for p in sorted(places, key=lambda p: p.rank)] == [
        "10.0.0.9 (devices 9)",
        "10.0.0.9 (devices 10)",
        "10.0.0.10",
    ]


def test_a_dry_run_names_each_node_with_its_processes_and_devices() -> None:
    places = {
        "host": NodePlace("10.0.0.1", "a"),
        "learner-0": NodePlace("10.0.0.1", "a", ("3",)),
        "engine-0": NodePlace("10.0.0.2", "b", ("0", "1")),
    }
    slots = [
        Slot("host", 0, {"buffer": "buffer", "router": "router"}),
        Slot("learner-0", 1, {"learner-0": "learner"}, bundle=0, node=None),
        Slot("engine-0", 2, {"engine-0": "engine"}, bundle=1, node=None),
    ]
    assert placed(places, slots) == [
        "on 10.0.0.1: buffer, router, learner-0 (device 3)",
        "on 10.0.0.2: engine-0 (devices 0, 1)",
    ]


def test_a_dry_run_without_its_cluster_says_so_and_goes_on() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        (said,) = placement_notes(RunConfig(ray_address=address, loss_type="sft_loss"))
    assert said.startswith(f"no cluster of Ray answers at {address} (--ray-address), so it is not")


def test_engines_that_do_not_divide_a_node_are_placed_one_by_one() -> None:
    flags = {"actor_num_nodes": 2, "actor_num_gpus_per_node": 6, "rollout_num_gpus_per_engine": 4}
    config = RunConfig(colocate=True, **flags)  # type: ignore[arg-type]
    assert bundle_sizes(plan_slots(config, gpus(8, 8), {})) == [4, 4, 4]


def test_bundles_that_fit_no_nodes_however_they_are_placed_are_told_before_ray_waits() -> None:
    config = RunConfig(
        actor_num_gpus_per_node=4, rollout_num_gpus=12, rollout_num_gpus_per_engine=6
    )
    told = r"\(1 x 4, 2 x 6\) do not fit nodes of 8, 8, however they are placed"
    with pytest.raises(EnvironmentSetupError, match=told):
        plan_slots(config, gpus(8, 8), {})
    assert bundle_sizes(plan_slots(config, gpus(8, 8, 4), {})) == [4, 6, 6]


def by_trying(sizes: list[int], rooms: list[int]) -> bool:
    """The reference: every node for every bundle."""
    ways = itertools.product(range(len(rooms)), repeat=len(sizes))
    return any(
        all(
            sum(size for size, node in zip(sizes, way, strict=True) if node == at) <= room
            for at, room in enumerate(rooms)
        )
        for way in ways
    )


@given(st.lists(st.integers(1, 8), max_size=5), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_bundles_fit_where_some_placement_fits(sizes: list[int], rooms: list[int]) -> None:
    assert fits(sizes, rooms) == by_trying(sizes, rooms)


def test_many_bundles_are_placed_in_a_moment() -> None:
    assert fits([8] * 128, [8] * 128)
    assert fits([1] * 5000, [8] * 625)
    assert not fits([3] * 400, [8] * 150)
    assert not fits([5] * 3, [8, 8])


def tensor(size: int, **flags: Any) -> RunConfig:
    return RunConfig(megatron={"tensor_model_parallel_size": size}, **flags)


@pytest.mark.parametrize("colocate", [False, True])
def test_a_tensor_parallel_group_that_would_be_on_two_nodes_is_refused(colocate: bool) -> None:
    engines = {"colocate": True, "rollout_num_gpus_per_engine": 3} if colocate else {}
    flags: dict[str, Any] = {"actor_num_nodes": 2, "actor_num_gpus_per_node": 6} | engines
    with pytest.raises(EnvironmentSetupError) as error:
        plan_slots(tensor(4, **flags), NODES, {})
    assert "--tensor-model-parallel-size 4: ranks 4 to 7 may come to be on" in str(error.value)
    ways = "--actor-num-gpus-per-node 4 or 8, or --tensor-model-parallel-size 1, 2, 3 or 6"
    assert str(error.value).endswith(ways)
    with pytest.raises(EnvironmentSetupError, match="--actor-num-gpus-per-node 4, or --tensor"):
        plan_slots(tensor(4, **flags), gpus(6, 6, 6), {})
    plan_slots(tensor(3, **flags), NODES, {})
    plan_slots(tensor(4, **flags), gpus(16), {})  # of one node no group leaves it


def test_a_tensor_parallel_group_that_engines_divide_is_refused() -> None:
    """Engines that do not divide the ranks of a node are placed one by one, with their ranks."""
    flags: dict[str, Any] = {
        "colocate": True,
        "actor_num_nodes": 3,
        "actor_num_gpus_per_node": 4,
        "rollout_num_gpus_per_engine": 6,
    }
    with pytest.raises(EnvironmentSetupError, match=r"ranks 4 to 7 .* engines of 6 devices do not"):
        plan_slots(tensor(4, **flags), NODES, {})
    plan_slots(tensor(2, **flags), NODES, {})


def test_a_tensor_parallel_group_larger_than_the_ranks_of_a_node_spans_nodes() -> None:
    config = tensor(16, actor_num_nodes=2, actor_num_gpus_per_node=8)
    assert bundle_sizes(plan_slots(config, NODES, {}))[:2] == [8, 8]


def test_a_run_that_needs_every_device_of_twelve_nodes_has_them_all() -> None:
    """Half nodes of the learner share one, each part of an engine and the service has its own."""
    config = RunConfig(
        actor_num_nodes=2,
        actor_num_gpus_per_node=4,
        num_agent_workers=3,
        rollout_num_gpus=80,
        rollout_num_gpus_per_engine=16,
    )
    slots = plan_slots(config, gpus(*[8] * 12), {"judge": 8})
    assert bundle_sizes(slots) == [4, 4, *[8] * 11]
    halves = [f"engine-{n}{part}" for n in range(5) for part in ("", ".1")]
    ranks = [f"learner-{rank}" for rank in range(8)]
    assert {slot.name for slot in slots} == {
        "host", "workers-1", "workers-2", "judge", *halves, *ranks
    }  # fmt: skip
    with pytest.raises(EnvironmentSetupError, match="do not fit"):
        plan_slots(config, gpus(*[8] * 11, 7, 1), {"judge": 8})
