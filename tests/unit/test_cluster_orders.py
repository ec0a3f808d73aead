"""What the processes of a run are told before any is started."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

import agentrl.envs.search_r1
from agentrl.cluster.host import ProcessOrder, environment_of
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.service_copies import ServiceCopy
from agentrl.cluster.slots import Slot, Supply, plan_slots
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.envs.services import needs_of

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"


class OneNode:
    """A cluster with one slot, whose ports are numbers, or with slots for the `parts` of an engine
    on nodes of their own. `host`: a slot with copies of services."""

    def __init__(self, parts: Sequence[str] = (), host: Slot | None = None) -> None:
        self._port = 20000
        self._parts = parts
        self._host = host

    def slots(self) -> list[str]:
        return ["host", *self._parts]

    def address_of(self, process: str) -> str:
        return f"10.0.0.{process[-1]}" if process in self._parts else "127.0.0.1"

    def reserve_port(self, process: str) -> int:
        self._port += 1
        return self._port

    def copies(self) -> list[ServiceCopy]:
        assert self._host is not None
        return [*self._host.copies]

    def copies_for(self, worker: str) -> list[str]:
        return [copy.process for copy in self.copies()]


def planned(
    folder: Path, device: Any, gpus: int = 0, parts: Sequence[str] = (), **flags: Any
) -> dict[str, ProcessOrder]:
    config = RunConfig(hf_checkpoint=str(MODEL), run_dir=str(folder), device=device, **flags)
    services = {"search": ServiceSpec("search", ["true"], "/", gpus)}
    with RunDir(config) as run:
        cluster = cast(Cluster, OneNode(parts))
        _, orders = plan_processes(config, run, cluster, services, device)
    return {order.name: order for order in orders}


def environments(folder: Path, device: Any, gpus: int = 0) -> dict[str, dict[str, str]]:
    orders = planned(folder, device, gpus, actor_num_gpus_per_node=1)
    return {name: order.env for name, order in orders.items()}


@pytest.mark.parametrize("gpus", [0, 1])
def test_no_process_of_a_run_on_the_cpu_sees_a_gpu(gpus: int, tmp_path: Path) -> None:
    told = environments(tmp_path, "cpu", gpus)
    assert {"engine-0", "learner-0", "buffer", "worker-0", "search", "router"} <= set(told)
    assert {env["CUDA_VISIBLE_DEVICES"] for env in told.values()} == {""}


@pytest.mark.parametrize("gpus", [0, 1])
def test_on_cuda_the_devices_are_those_that_ray_gave_and_others_see_none(
    gpus: int, tmp_path: Path
) -> None:
    """A library that somebody imported (JAX) took three quarters of the learner's GPU, in a
    service that uses none."""
    told = environments(tmp_path, "cuda", gpus)
    sees = {name for name, env in told.items() if "CUDA_VISIBLE_DEVICES" not in env}
    assert sees == {"engine-0", "learner-0"} | ({"search"} if gpus else set())
    assert {env["CUDA_VISIBLE_DEVICES"] for name, env in told.items() if name not in sees} == {""}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_copies_on_a_node_see_their_own_devices_and_workers_are_told_of_them(
    device: Any, tmp_path: Path
) -> None:
    asked = {"judge": (["serve", "{port}"], 2), "search": (["find"], 0), "model": (["rate"], 1)}
    services = {n: ServiceSpec(n, argv, "/", gpus, 0, "node") for n, (argv, gpus) in asked.items()}
    flags: dict[str, Any] = {"run_dir": str(tmp_path), "actor_num_gpus_per_node": 1}
    config = RunConfig(hf_checkpoint=str(MODEL), device=device, **flags)
    supply = Supply("GPU", (8,)) if device == "cuda" else Supply()
    host = plan_slots(config, supply, *needs_of(services))[0]
    with RunDir(config) as run:
        cluster = cast(Cluster, OneNode(host=host))
        spec, planned = plan_processes(config, run, cluster, services, device)
    orders = {order.name: order for order in planned}
    names = [order.name for order in planned]
    assert names.index("judge") < names.index("worker-0")
    url = spec.services_of("worker-0")["judge"]
    assert orders["judge"].argv == ("serve", url.rpartition(":")[2])
    assert orders["judge"].ready_url == f"{url}/"
    assert {orders[name].kind for name in asked} == {"node-service"}
    node = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    sees = {
        n: environment_of(orders[n], node)["CUDA_VISIBLE_DEVICES"] for n in [*asked, "worker-0"]
    }
    hidden = dict.fromkeys(sees, "")
    assert sees == (hidden | {"judge": "4,5", "model": "6"} if device == "cuda" else hidden)


def test_on_a_cluster_processes_start_as_here_and_meet_at_the_nodes_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    orders = planned(tmp_path, "cuda", ray_address="auto")
    assert {order.folder for order in orders.values()} == {str(Path.cwd())}
    assert {order.env_defaults["PYTHONPATH"] for order in orders.values()} == {"mine"}
    meets = {order.kind for order in orders.values() if order.interface_variables}
    assert meets == {"engine", "learner"}
    assert not any("GLOO_SOCKET_IFNAME" in order.env for order in orders.values())
    alone = planned(tmp_path, "cuda").values()
    assert {order.folder for order in alone} == {""}


@pytest.mark.parametrize(
    ("device", "offloads", "saves"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_engines_that_release_memory_are_started_so_that_they_can(
    device: str, offloads: bool, saves: bool, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {
        "colocate": True,
        "offload_rollout": offloads,
        "actor_num_gpus_per_node": 2,
    }
    orders = planned(tmp_path, device, **flags)
    engines = [order for order in orders.values() if order.kind == "engine"]
    assert [order.name for order in engines] == ["engine-0", "engine-1"]
    assert ["--enable-memory-saver" in order.argv for order in engines] == [saves] * 2


@pytest.mark.parametrize(
    ("flags", "has_tokenizer"),
    [
        ({}, False),
        ({"rollout_stop": ["</answer>"]}, True),
        ({"env_mix": {"parts": [{"name": "a", "stop": ["."]}, {"name": "b"}]}}, True),
    ],
)
def test_engines_have_a_tokenizer_where_a_turn_may_end_at_a_string(
    flags: Any, has_tokenizer: bool, tmp_path: Path
) -> None:
    engine = planned(tmp_path, "cpu", **flags)["engine-0"]
    assert ("--skip-tokenizer-init" not in engine.argv) is has_tokenizer


def test_parts_of_an_engine_meet_at_the_node_of_the_first(tmp_path: Path) -> None:
    parts = ("engine-0", "engine-0.1")
    orders = planned(
        tmp_path, "cuda", parts=parts, rollout_num_gpus=16, rollout_num_gpus_per_engine=16
    )
    told = [dict(pairwise(orders[name].argv)) for name in parts]
    shapes = [(each["--nnodes"], each["--node-rank"], each["--tp-size"]) for each in told]
    assert shapes == [("2", "0", "16"), ("2", "1", "16")]
    assert [each["--host"] for each in told] == ["10.0.0.0", "10.0.0.1"]
    assert len({each["--port"] for each in told}) == 2
    (meets_at,) = {each["--dist-init-addr"] for each in told}
    assert meets_at.startswith("10.0.0.0:")
    variable = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
    assert {orders[name].env[variable] for name in parts} == {f"tcp://{meets_at}"}
    own = [orders[name].env["SGLANG_HOST_IP"] for name in parts]
    assert own == ["10.0.0.0", "10.0.0.1"], "where one hears what others send"
    first, second = (orders[name] for name in parts)
    assert first.ready_url == f"http://10.0.0.0:{told[0]['--port']}/health"
    assert not second.ready_url, "only the first part speaks HTTP"
    (alone,) = [order for order in planned(tmp_path, "cuda").values() if order.kind == "engine"]
    assert not {"--nnodes", "--dist-init-addr"} & {*alone.argv}
    assert variable not in alone.env


def test_a_core_is_given_to_each_rank_of_a_part(tmp_path: Path) -> None:
    parts = ("engine-0", "engine-0.1")
    for names, cores in ((parts, "0"), (parts[:1], "0|1")):
        orders = planned(
            tmp_path, "cpu", parts=names, rollout_num_gpus=2, rollout_num_gpus_per_engine=2
        )
        assert {orders[name].env["SGLANG_CPU_OMP_THREADS_BIND"] for name in names} == {cores}
