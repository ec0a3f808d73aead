"""How many agent workers a run has by default: `agentrl/config/workers.py`."""

import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from agentrl.config.workers import with_agent_workers

ON_A_CLUSTER = ("--ray-address", "10.0.0.1:6379")
OWN = ("--hf-checkpoint", "model", "--env", "search-r1-local", "--prompt-data", "rows.jsonl")


def resolve(*argv: str) -> tuple[RunConfig, list[str]]:
    config, notes = layered(read_flags(list(argv)), "train_async")
    return config, [note for note in notes if "agent workers" in note]


@pytest.mark.parametrize(
    ("nodes", "ranks", "engine_gpus", "count"), [(1, 8, 8, 2), (1, 4, 5, 2), (4, 8, 32, 8)]
)
def test_on_a_cluster_there_is_one_for_every_eight_devices(
    nodes: int, ranks: int, engine_gpus: int, count: int
) -> None:
    sizes = f"--actor-num-nodes {nodes} --actor-num-gpus-per-node {ranks}"
    argv = f"{sizes} --rollout-num-gpus {engine_gpus}".split()
    config, (note,) = resolve(*OWN, *ON_A_CLUSTER, *argv)
    assert config.num_agent_workers == count
    assert config.worker_names == [f"worker-{number}" for number in range(count)]
    assert note.startswith(f"{count} agent workers, one for every 8 devices of the run")


def test_devices_that_engines_share_with_the_learner_count_once() -> None:
    shared = RunConfig(
        ray_address="10.0.0.1:6379", actor_num_nodes=2, actor_num_gpus_per_node=8, colocate=True
    )
    config, _ = with_agent_workers(shared, {})
    assert config.num_agent_workers == 2


@pytest.mark.parametrize(
    "flags",
    [
        [*OWN, "--actor-num-gpus-per-node", "8", "--rollout-num-gpus", "8"],
        [*OWN, *ON_A_CLUSTER, "--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "4"],
        [*ON_A_CLUSTER, "--actor-num-gpus-per-node", "8", "--rollout-num-gpus", "8"],
    ],
    ids=["one machine", "eight devices", "the default job"],
)
def test_otherwise_there_is_one(flags: list[str]) -> None:
    config, notes = resolve(*flags)
    assert config.num_agent_workers == 1
    assert notes == []


def test_a_number_that_somebody_gives_is_the_number() -> None:
    flags = ["--actor-num-gpus-per-node", "8", "--rollout-num-gpus", "8"]
    config, notes = resolve(*OWN, *ON_A_CLUSTER, *flags, "--num-agent-workers", "1")
    assert config.num_agent_workers == 1
    assert notes == []
