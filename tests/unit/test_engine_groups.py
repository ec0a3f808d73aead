"""Engines of several kinds: what a file or a flag says of them, and what each of them is told."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentrl.cluster.dry_placement import placed
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.roles.worker import client_settings
from agentrl.cluster.slots import NodePlace, Supply, bundle_sizes, plan_slots
from agentrl.cluster.spec import RunSpec
from agentrl.config.args import Args
from agentrl.config.command_line import Program
from agentrl.config.device_defaults import check_device
from agentrl.config.engines import named_ranks, notes_on_engines
from agentrl.config.plan import describe
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.settings_file import settings_of
from agentrl.config.toml import dump_config
from agentrl.errors import ConfigError, EnvironmentSetupError
from agentrl.serving.collective_fleet import CollectiveFleet
from agentrl.types import EngineAddress

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
#: A cluster that is not asked for its devices yet, so that nothing here depends on those of a host.
SOMEWHERE = ("--preset", DEFAULT, "--device", "auto", "--ray-address", "127.0.0.1:6379")
MIXED = """
sglang:
  - name: default
    num_gpus_per_engine: 1
    server_groups:
      - {worker_type: regular, num_gpus: 4, num_gpus_per_engine: 2}
      - {worker_type: placeholder, num_gpus: 2}
      - worker_type: regular
        num_gpus: 2
        overrides: {chunked_prefill_size: 256, cuda_graph_max_bs: 4}
"""
PAIRS = """
sglang:
  - name: actor
    update_weights: true
    server_groups:
      - {worker_type: prefill, num_gpus: 4, num_gpus_per_engine: 4}
      - worker_type: decode
        num_gpus: 4
        num_gpus_per_engine: 2
        overrides: {disaggregation_transfer_backend: nixl}
"""


class Ports:
    """One node, whose ports are numbers."""

    def __init__(self) -> None:
        self._ports = count(20000)

    def slots(self) -> list[str]:
        return ["host"]

    def address_of(self, process: str) -> str:
        return "127.0.0.1"

    def reserve_port(self, process: str) -> int:
        return next(self._ports)


@pytest.fixture
def said(tmp_path: Path) -> Any:
    """Write a file of groups; returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "groups.yaml"
        path.write_text(text)
        return str(path)

    return write


def parsed(*flags: str, program: Program = "train") -> RunConfig:
    return parse([*SOMEWHERE, *flags], program).config


def refused(*flags: str, program: Program = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(*flags, program=program)
    return str(caught.value)


def plan(config: RunConfig, folder: Path) -> tuple[RunSpec, dict[str, ProcessOrder]]:
    run = RunDir(config)
    run.private = folder
    spec, orders = plan_processes(config, run, cast(Cluster, Ports()), {}, "cuda")
    return spec, {order.name: order for order in orders}


def value_of(order: ProcessOrder, flag: str) -> str | None:
    return order.argv[order.argv.index(flag) + 1] if flag in order.argv else None


def devices_of(config: RunConfig, *of_nodes: int) -> dict[str, tuple[int, tuple[str, ...]]]:
    slots = plan_slots(config, Supply("GPU", of_nodes), {})
    return {slot.name: (slot.size, tuple(slot.processes)) for slot in slots if slot.size}


# ---- regular engines of several sizes --------------------------------------------------------


def test_engines_of_several_sizes_are_placed_and_started_as_their_groups_say(
    said: Any, tmp_path: Path
) -> None:
    config = parsed("--sglang-config", said(MIXED), "--sglang-max-running-requests", "8")
    assert [engine.size for engine in config.engines] == [2, 2, 1, 1]
    assert config.num_permits == 4 * config.sglang_server_concurrency
    assert Args(config).rollout_num_gpus == 8
    spec, orders = plan(config, tmp_path)
    assert [engine.num_ranks for engine in spec.engines] == [2, 2, 1, 1]
    assert {engine.kind for engine in spec.engines} == {"regular"}
    engines = [orders[f"engine-{index}"] for index in range(4)]
    assert [value_of(order, "--tp-size") for order in engines] == ["2", "2", "1", "1"]
    chunks = [value_of(order, "--chunked-prefill-size") for order in engines]
    assert chunks == [None, None, "256", "256"]
    # what SGLang calls otherwise today
    assert value_of(engines[3], "--cuda-graph-max-bs-decode") == "4"
    assert {value_of(order, "--max-running-requests") for order in engines} == {"8"}
    assert not any("--disaggregation-mode" in order.argv for order in engines)
    assert "--pd-disaggregation" not in orders["router"].argv


def test_devices_of_a_placeholder_are_kept_and_nothing_runs_there(said: Any) -> None:
    config = parsed("--sglang-config", said(MIXED), "--actor-num-gpus-per-node", "2")
    assert devices_of(config, 4, 4, 4) == {
        **{f"learner-{rank}": (1, (f"learner-{rank}",)) for rank in range(2)},
        **{f"engine-{index}": (2, (f"engine-{index}",)) for index in range(2)},
        **{f"engine-{index}": (1, (f"engine-{index}",)) for index in (2, 3)},
        **{f"empty-{index}": (1, ()) for index in range(2)},
    }
    slots = plan_slots(config, Supply("GPU", (4, 4, 4)), {})
    assert bundle_sizes(slots) == [2, 2, 2, 1, 1, 1, 1]
    places = {slot.name: NodePlace("10.0.0.1", "n", ("7",)) for slot in slots}
    (line,) = placed(places, slots)
    assert line.count("nothing (device 7)") == 2
    text = r"2 learner ranks \+ 2 engines x 2 \+ 2 empty \+ 2 engines x 1\) and the cluster has 4"
    with pytest.raises(EnvironmentSetupError, match=text):
        plan_slots(config, Supply("GPU", (4,)), {})
    config = parsed("--sglang-config", said(MIXED), "--actor-num-gpus-per-node", "1")
    on_small_nodes = devices_of(config, *(1,) * 12)
    assert {name for name in on_small_nodes if name.startswith("engine-0")} == {
        "engine-0",
        "engine-0.1",
    }


def test_colocated_engines_of_several_sizes_have_the_ranks_of_their_devices(said: Any) -> None:
    config = parsed("--sglang-config", said(MIXED), "--colocate", "--actor-num-gpus-per-node", "8")
    ranks = [f"learner-{rank}" for rank in range(8)]
    assert devices_of(config, 8) == {
        "engine-0": (2, ("engine-0", *ranks[0:2])),
        "engine-1": (2, ("engine-1", *ranks[2:4])),
        **{rank: (1, (rank,)) for rank in ranks[4:6]},
        "engine-2": (1, ("engine-2", ranks[6])),
        "engine-3": (1, ("engine-3", ranks[7])),
    }
    assert bundle_sizes(plan_slots(config, Supply("GPU", (8,)), {})) == [8]


def test_on_one_node_without_gpus_groups_run_in_one_slot(said: Any) -> None:
    config = parse(
        ["--preset", DEFAULT, "--device", "cpu", "--sglang-config", said(MIXED)], "train_async"
    ).config
    (slot,) = plan_slots(config, Supply(), {})
    assert [name for name in slot.processes if "engine" in name] == config.engine_names


def test_a_run_keeps_the_groups_whatever_becomes_of_the_file(said: Any, tmp_path: Path) -> None:
    config = parsed("--sglang-config", said(MIXED))
    kept = tmp_path / "config.toml"
    kept.write_text(dump_config(config))
    assert settings_of(kept)["sglang_config"] == config.sglang_config


def test_a_dry_run_names_the_groups(said: Any) -> None:
    page = describe(parsed("--sglang-config", said(MIXED), "--actor-num-gpus-per-node", "2"))
    assert "engines   4 SGLang behind 1 router:" in page
    assert "2 of 2 devices\n" in page
    assert "2 devices without an engine (server_groups[1])" in page
    assert "2 of 1 devices, chunked_prefill_size 256, cuda_graph_max_bs 4" in page
    assert "10 GPUs of the cluster" in page


def test_groups_of_ranks_are_named_to_turns_only_where_all_engines_have_as_many() -> None:
    def config(*widths: int, **flags: Any) -> RunConfig:
        groups = [
            {"worker_type": "regular", "num_gpus": 4, "overrides": {"attn_dp_size": width}}
            for width in widths
        ]
        return RunConfig(
            sglang_config={"sglang": [{"server_groups": groups}]},
            rollout_num_gpus_per_engine=4,
            **flags,
        )

    assert named_ranks(config(2, 2)) == 2
    assert named_ranks(config(2, 1)) == 1
    assert named_ranks(RunConfig(sglang={"attn_dp_size": 4})) == 4
    apart = RunConfig(
        sglang={"attn_dp_size": 4, "load_balance_method": "follow_bootstrap_room"},
        prefill_num_servers=1,
        rollout_num_gpus=8,
        rollout_num_gpus_per_engine=4,
    )
    assert named_ranks(apart) == 1
    assert not any("load-balance-method" in note for note in notes_on_engines(apart))


class Member:
    """An engine of which only the ranks in a collective are asked."""

    def __init__(self, name: str, num_ranks: int) -> None:
        self.name = name
        self.engine = EngineAddress(name, "", num_ranks=num_ranks)
        self.told: dict[str, Any] = {}

    async def destroy_group(self, _name: str) -> None:
        return

    async def init_group(self, **told: Any) -> None:
        self.told = told


class Sender:
    """The sender's side of a collective, which comes about at once."""

    name, host, port, backend, connect_s, sees_losses = "weights", "", 1, "gloo", 1.0, True

    def __init__(self) -> None:
        self.world_size = 0

    def connect(self, world_size: int) -> None:
        self.world_size = world_size

    def close(self) -> None:
        return


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


def test_engines_of_several_sizes_have_all_their_ranks_in_a_push(portal: BlockingPortal) -> None:
    members = [Member("a", 2), Member("b", 1), Member("c", 4)]
    sender = Sender()
    fleet = CollectiveFleet(
        cast(Any, members), name="weights", portal=portal, open_group=lambda name: cast(Any, sender)
    )
    fleet.connect()
    assert [member.told["rank"] for member in members] == [1, 3, 4]
    assert {member.told["world_size"] for member in members} == {sender.world_size} == {8}


# ---- prefill apart ---------------------------------------------------------------------------


def test_of_the_engines_so_many_prefill_and_the_others_decode(tmp_path: Path) -> None:
    config = parsed(
        "--prefill-num-servers", "1", "--rollout-num-gpus", "6", "--rollout-num-gpus-per-engine",
        "2", "--sglang-disaggregation-transfer-backend", "mooncake",
    )  # fmt: skip
    assert [engine.kind for engine in config.engines] == ["prefill", "decode", "decode"]
    spec, orders = plan(config, tmp_path)
    engines = [orders[f"engine-{index}"] for index in range(3)]
    modes = [value_of(order, "--disaggregation-mode") for order in engines]
    assert modes == ["prefill", "decode", "decode"]
    port = str(spec.engines[0].bootstrap_port)
    ports = [value_of(order, "--disaggregation-bootstrap-port") for order in engines]
    assert ports == [port, None, None]
    assert port not in {value_of(order, "--port") for order in orders.values()}
    backends = {value_of(order, "--disaggregation-transfer-backend") for order in engines}
    assert backends == {"mooncake"}
    assert "--pd-disaggregation" in orders["router"].argv
    assert [order.argv.count("--disaggregation-mode") for order in engines] == [1, 1, 1]
    # an engine that prefills takes no turn of its own
    assert client_settings(spec)["num_permits"] == 2 * config.sglang_server_concurrency
    assert config.pins_evaluations


def test_groups_that_prefill_and_decode_are_started_as_such(said: Any, tmp_path: Path) -> None:
    spec, orders = plan(parsed("--sglang-config", said(PAIRS)), tmp_path)
    assert [(e.kind, e.num_ranks) for e in spec.engines] == [
        ("prefill", 4),
        ("decode", 2),
        ("decode", 2),
    ]
    assert value_of(orders["engine-2"], "--disaggregation-transfer-backend") == "nixl"
    assert value_of(orders["engine-0"], "--disaggregation-transfer-backend") is None


def test_under_colocate_the_learners_devices_are_those_of_both_kinds() -> None:
    flags = ["--prefill-num-servers", "1", "--colocate", "--rollout-num-gpus", "8"]
    per = ["--rollout-num-gpus-per-engine", "4", "--actor-num-gpus-per-node", "8"]
    config = parsed(*flags, *per)
    assert [engine.kind for engine in config.engines] == ["prefill", "decode"]
    assert bundle_sizes(plan_slots(config, Supply("GPU", (8,)), {})) == [8]


def test_an_evaluation_alone_may_prefill_apart() -> None:
    """No push comes between its turns."""
    flags = ["--prefill-num-servers", "1", "--rollout-num-gpus", "2", "--eval-only"]
    assert parsed(*flags, program="train_async").has_prefill_apart


APART = ("--prefill-num-servers", "1", "--rollout-num-gpus", "2")


@pytest.mark.parametrize(
    ("flags", "program", "why"),
    [
        ((), "train_async", "forgets which weights sampled"),
        (("--over-sampling-batch-size", "80"), "train", "between two engines when a push comes"),
        (("--kv-across-pushes", "keep"), "train", "there is no cache to keep"),
        (("--use-rollout-routing-replay",), "train", "is not told the experts of the prompt"),
        (
            ("--colocate", "--sglang-disaggregation-transfer-backend", "nixl"),
            "train",
            "of which that backend is not told; use mooncake, or --no-offload-rollout",
        ),
        (("--rollout-num-gpus", "1"), "train", "leaves none of 1 engines to decode"),
        (("--device", "cpu"), "train", "SGLang has none for the CPU"),
        (("--sglang-disaggregation-mode", "decode"), "train", "use --prefill-num-servers, or"),
        (("--sglang-disaggregation-bootstrap-port", "9000"), "train", "a port that is free"),
        (("--router-pd-disaggregation",), "train", "use --prefill-num-servers, or groups"),
        (("--rollout-external-engine-addrs", "10.0.0.1:1"), "train", "are what they are"),
    ],
)
def test_prefill_apart_is_refused_where_it_could_not_be_right(
    flags: tuple[str, ...], program: Program, why: str
) -> None:
    assert why in refused(*APART, *flags, program=program)


def test_engines_of_one_kind_are_free_of_what_keeps_prefill_apart(said: Any) -> None:
    config = parsed("--sglang-config", said(MIXED), program="train_async")
    assert not config.has_prefill_apart
    assert not config.pins_evaluations
    check_device(config, "cpu")


def test_a_cluster_that_turns_out_to_have_no_gpu_refuses_prefill_apart(said: Any) -> None:
    with pytest.raises(ConfigError, match="--sglang-config: engines that prefill hand the cache"):
        check_device(parsed("--sglang-config", said(PAIRS)), "cpu")
