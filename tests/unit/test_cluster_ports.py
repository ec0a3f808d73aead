"""Ports of a run: of the range that --port-range names, none twice, and told before the start."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.cluster.dry_placement import placement_notes
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.port_plan import port_lines, ports_of_processes
from agentrl.cluster.ports import NodePorts, free_ports
from agentrl.cluster.slots import NodePlace
from agentrl.config.port_range import about_port_range, ports_of
from agentrl.config.run import RunConfig
from agentrl.envs.env import ServiceSpec
from agentrl.errors import EnvironmentSetupError, PushError
from agentrl.serving.collective import SenderGroup
from tests.unit.test_cluster_orders import MODEL, OneNode

HERE, THERE = NodePlace("10.0.0.1", "n1"), NodePlace("10.0.0.2", "n2")


@pytest.fixture
def two_ports() -> range:
    """Two ports in a row that were free a moment ago."""
    for first in free_ports(200):
        if len(free_ports(2, (), range(first, first + 2))) == 2:
            break
    return range(first, first + 2)


def test_a_port_is_given_once_on_each_node_and_of_the_range_alone(two_ports: range) -> None:
    ports = NodePorts(two_ports)
    assert {ports.give("engine-0", HERE, free_ports) for _ in two_ports} == set(two_ports)
    assert ports.give("engine-1", THERE, free_ports) in two_ports
    told = rf"10.0.0.1 for router: of {two_ports[0]}-{two_ports[-1]} .* this run has 2"
    with pytest.raises(EnvironmentSetupError, match=told):
        ports.give("router", HERE, free_ports)
    ports.take_back(["engine-0"])
    assert ports.give("router", HERE, free_ports) in two_ports


def test_a_port_that_another_program_has_is_not_given(two_ports: range) -> None:
    with socket.create_server(("127.0.0.1", two_ports[0])):
        assert free_ports(2, (), two_ports) == [two_ports[1]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("20000-20999", ""),
        ("20000", "write the first and the last port"),
        ("20000-", "write the first and the last port"),
        ("-1-20999", "write the first and the last port"),
        ("2000-1999", "the lower one first"),
        ("80-90", "from 1024 to 65535"),
        ("20000-70000", "from 1024 to 65535"),
    ],
)
def test_a_range_is_two_ports_or_is_refused(text: str, told: str) -> None:
    config = RunConfig(port_range=text)
    refused = list(about_port_range(config))
    assert [told in line and text in line for line in refused] == ([True] if told else [])
    if not told:
        assert ports_of(config) == range(20000, 21000)


class Counting(OneNode):
    def __init__(self, parts: Sequence[str] = ()) -> None:
        super().__init__(parts)
        self.taken: dict[str, int] = {}

    def reserve_port(self, process: str) -> int:
        self.taken[process] = self.taken.get(process, 0) + 1
        return super().reserve_port(process)


GROUPS = [
    {"worker_type": "prefill", "num_gpus": 1, "num_gpus_per_engine": 1},
    {"worker_type": "decode", "num_gpus": 1, "num_gpus_per_engine": 1},
]


@pytest.mark.parametrize(
    ("parts", "flags"),
    [
        ((), {}),
        ((), {"port_range": "20000-20999"}),
        ((), {"port_range": "20000-20999", "rollout_num_gpus": 3}),
        (("engine-0", "engine-0.1"), {"rollout_num_gpus_per_engine": 16}),
        ((), {"sglang_config": {"sglang": [{"name": "m", "server_groups": GROUPS}]}}),
        ((), {"rollout_external_engine_addrs": ["127.0.0.1:9000"], "port_range": "2000-2999"}),
        ((), {"eval_mode": "apart", "eval_interval": 1, "eval_num_engines": 2}),
        ((), {"loss_type": "sft_loss", "port_range": "20000-20999"}),
        (
            (),
            {
                "update_weight_transport": "disk",
                "update_weight_disk_dir": "shared",
                "port_range": "20000-20999",
            },
        ),
    ],
)
def test_a_dry_run_counts_the_ports_that_a_run_takes(
    parts: Sequence[str], flags: dict[str, Any], tmp_path: Path
) -> None:
    config = RunConfig(hf_checkpoint=str(MODEL), run_dir=str(tmp_path), device="cuda", **flags)
    services = {"search": ServiceSpec("search", ["true"], "/", 0)}
    cluster = Counting(parts)
    with RunDir(config) as run:
        spec, _ = plan_processes(config, run, cast(Cluster, cluster), services, "cuda")
    assert ports_of_processes(config, cluster.slots(), services) == cluster.taken
    assert len(spec.push_ports) == max(0, cluster.taken["learner-0"] - 1)


def test_a_dry_run_prints_the_ports_and_a_range_that_is_taken_is_refused(two_ports: range) -> None:
    first = two_ports[0]
    room = RunConfig(port_range=f"{first}-{first + 200}", loss_type="sft_loss")
    line, last = placement_notes(room)
    assert line == f"ports on 127.0.0.1: 1 of {room.port_range} (--port-range): learner-0 1"
    assert "net.ipv4.ip_local_port_range" in last
    with ExitStack() as stack:
        for port in two_ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        full = RunConfig(port_range=f"{first}-{two_ports[-1]}", loss_type="sft_loss")
        with pytest.raises(
            EnvironmentSetupError, match=r"no free port on 127\.0\.0\.1 for learner-0"
        ):
            placement_notes(full)


def test_each_node_has_its_line() -> None:
    needs = {"10.0.0.1": {"buffer": 1, "router": 2}, "10.0.0.2": {"engine-0": 1}, "10.0.0.3": {}}
    assert port_lines(RunConfig(), needs)[:-1] == [
        "ports on 10.0.0.1: 3 of any: buffer 1, router 2",
        "ports on 10.0.0.2: 1 of any: engine-0 1",
    ]


def test_a_push_meets_at_the_ports_of_the_run_and_says_when_all_are_taken(
    two_ports: range,
) -> None:
    open_group = partial(
        SenderGroup, host="127.0.0.1", backend="gloo", timeout_s=60.0, connect_s=60.0
    )
    groups = [open_group(f"g{number}", ports=tuple(two_ports)) for number in range(2)]
    assert [group.port for group in groups] == list(two_ports)
    with pytest.raises(PushError, match=f"listens on each of {two_ports[0]}, {two_ports[1]}"):
        open_group("g2", ports=tuple(two_ports))
    groups[0].close()
    again = open_group("g0", ports=tuple(two_ports))
    assert again.port == two_ports[0]
    for group in (groups[1], again):
        group.close()
