"""Services of which each node has a copy (`per="node"`): where copies are, what they have there,
and which of them an agent worker is told."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.cluster.dry_placement import placed
from agentrl.cluster.host import ProcessOrder, environment_of
from agentrl.cluster.ports import NodePorts
from agentrl.cluster.slots import NodePlace, Slot, Supply, bundles_of, plan_slots
from agentrl.cluster.spec import CopyAddress
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.reward_service import service_of
from agentrl.envs.services import needs_of
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError, EnvironmentSetupError
from tests.unit.test_cluster_restarts import SPEC


def gpus(*of_nodes: int) -> Supply:
    return Supply("GPU", of_nodes)


def per_node(*, cpus: int = 0, **devices: int) -> dict[str, ServiceSpec]:
    return {n: ServiceSpec(n, ["serve"], "/", size, cpus, "node") for n, size in devices.items()}


def planned(supply: Supply, services: dict[str, ServiceSpec], **flags: Any) -> list[Slot]:
    config = RunConfig(actor_num_gpus_per_node=1, rollout_num_gpus=1, **flags)
    return plan_slots(config, supply, *needs_of(services))


def booked(slots: list[Slot]) -> dict[str, tuple[int, int, int | None]]:
    return {s.name: (s.size, s.num_cpus, s.node) for s in slots if s.copies}


def test_each_node_with_agent_workers_has_a_copy_with_devices_and_processors_there() -> None:
    services = per_node(judge=2, cpus=4) | {"index": ServiceSpec("index", ["serve"], "/", cpus=3)}
    slots = planned(gpus(8, 8, 8), services, num_agent_workers=2)
    assert booked(slots) == {"host": (2, 4, 0), "workers-1": (2, 4, 1)}
    assert [*slots[1].processes.items()] == [("worker-1", "worker"), ("judge.1", "node-service")]
    assert slots[0].processes["judge"] == "node-service"
    assert bundles_of(slots, "GPU") == [{"GPU": 1}, {"GPU": 1}, {"CPU": 3}]


def test_copies_in_one_slot_divide_its_devices() -> None:
    (host, *_) = planned(gpus(8), per_node(judge=2, search=0, reward=1))
    shares = {copy.service: (copy.first, copy.size) for copy in host.copies}
    assert shares == {"judge": (0, 2), "search": (2, 0), "reward": (2, 1)}
    assert host.size == 3


def test_where_processors_are_devices_a_copy_has_processors() -> None:
    slots = planned(Supply("CPU", (4, 4)), per_node(judge=2, cpus=3), num_agent_workers=2)
    assert booked(slots) == {"host": (3, 0, 0), "workers-1": (3, 0, 1)}


def test_on_one_node_without_gpus_nothing_is_set_aside() -> None:
    (host,) = planned(Supply(), per_node(judge=2, cpus=3))
    assert (host.size, host.num_cpus, host.processes["judge"]) == (0, 0, "node-service")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ((8, 1), r'\(per="node": judge, search\) ask for 3 GPUs on each node .* one .* has 1;'),
        ((3, 4), r"8 GPUs .* 4 of the service judge \(2 copies\) \+ 2 .* and the cluster has 7"),
    ],
)
def test_a_cluster_without_room_for_copies_is_told_before_ray_waits(
    nodes: tuple[int, ...], said: str
) -> None:
    with pytest.raises(EnvironmentSetupError, match=said):
        planned(gpus(*nodes), per_node(judge=2, search=1), num_agent_workers=2)


def test_bundles_have_the_room_that_copies_leave() -> None:
    engines: dict[str, Any] = {"rollout_num_gpus_per_engine": 4, "rollout_num_gpus": 4}
    config = RunConfig(actor_num_gpus_per_node=1, num_agent_workers=2, **engines)
    for size, fits in ((0, True), (1, False)):
        needs = needs_of(per_node(judge=size))
        if fits:
            assert plan_slots(config, gpus(4, 4), *needs)
            continue
        with pytest.raises(EnvironmentSetupError, match="do not fit nodes of 3, 3"):
            plan_slots(config, gpus(4, 4), *needs)


def test_a_dry_run_names_what_each_copy_has_and_nobody_else_of_its_slot() -> None:
    services = per_node(judge=2, cpus=4) | per_node(search=1)
    services |= {"index": ServiceSpec("index", ["serve"], "/", cpus=1)}
    slots = planned(gpus(8, 8), services, num_agent_workers=2)
    devices = {"host": ("0", "1", "5"), "workers-1": ("2", "3", "4"), "learner-0": ("6",)}
    nodes = dict.fromkeys((s.name for s in slots), 1) | {"workers-1": 2}
    places = {
        name: NodePlace(f"10.0.0.{node}", f"n{node}", devices.get(name, ()))
        for name, node in nodes.items()
    }
    here, there = placed(places, slots)
    assert here == (
        "on 10.0.0.1: buffer, router, worker-0, judge (devices 0, 1, 4 processors), "
        "search (device 5), learner-0 (device 6), engine-0, index (1 processor)"
    )
    assert there == (
        "on 10.0.0.2: worker-1, judge.1 (devices 2, 3, 4 processors), search.1 (device 4)"
    )
    of_cpus = planned(Supply("CPU", (9, 9)), services, num_agent_workers=2)
    lines = placed({slot.name: NodePlace("10.0.0.1") for slot in of_cpus}, of_cpus)
    assert "worker-0, judge (4 processors), search, worker-1" in lines[0]


@pytest.mark.parametrize(("share", "sees"), [((0, 2), "3,5"), ((2, 3), "7"), (None, "3,5,7")])
def test_a_process_sees_its_share_of_what_ray_gave_its_host(
    share: tuple[int, int] | None, sees: str
) -> None:
    order = ProcessOrder("judge", (), "node-service", devices=share)
    told = environment_of(order, {"CUDA_VISIBLE_DEVICES": "3,5,7"})
    assert told["CUDA_VISIBLE_DEVICES"] == sees
    hidden = msgspec.structs.replace(order, env={"CUDA_VISIBLE_DEVICES": ""})
    assert environment_of(hidden, told)["CUDA_VISIBLE_DEVICES"] == ""


def test_an_agent_worker_is_told_the_copy_of_its_node_under_the_name_of_the_service() -> None:
    spec = ServiceSpec("judge", ["serve"], "/", per="node")
    told = msgspec.structs.replace(
        SPEC,
        services={"search": "http://10.0.0.1:1"},
        copies={
            "judge": CopyAddress("judge", "http://10.0.0.1:2", spec),
            "judge.1": CopyAddress("judge", "http://10.0.0.2:2", spec),
        },
        copies_used={"worker-0": ["judge"], "worker-1": ["judge.1"]},
    )
    read = msgspec.json.decode(msgspec.json.encode(told), type=type(told))
    found = {worker: read.services_of(worker) for worker in ("worker-0", "worker-1")}
    here, there = "http://10.0.0.1:2", "http://10.0.0.2:2"
    shared = {"search": "http://10.0.0.1:1"}
    assert found == {
        "worker-0": shared | {"judge": here},
        "worker-1": shared | {"judge": there},
    }


def test_a_port_is_held_on_the_node_where_it_was_given() -> None:
    ports = NodePorts()
    here = NodePlace("10.0.0.1", "n1")
    port = ports.give("judge", here, lambda *_: [7001])
    assert ports.held("judge", here) == port
    assert ports.held("judge", NodePlace("10.0.0.1", "n2")) is None
    assert ports.held("search", here) is None


def test_per_is_run_or_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='service judge: per is \'host\'; give "run" or "node"'):
        ServiceSpec("judge", ["serve"], "/", per="host")  # type: ignore[arg-type]
    told = {"argv": ["serve"], "per": "node", "cpus": 2, "gpus": 1}
    (spec,) = SingleTurnEnv.service_specs({"rm_type": "remote_rm", "reward_service": told}).values()
    assert (spec.gpus, spec.cpus, spec.per) == (1, 2, "node")
    with pytest.raises(ConfigError, match="is no service"):
        service_of(told | {"per": "host"})
