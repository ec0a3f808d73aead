"""The names of a short run's metrics are those of `metric_names.json`, for every kind of loss.

python -m tests.integration.test_learner_metric_names    write the file (say why in CHANGELOG)
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch
from agentrl.telemetry.metrics import REGISTRY
from agentrl.wire.messages import PushDone, Stepped
from tests.integration.learner_world import World, learn

FILE = Path(__file__).with_name("metric_names.json")


def counting_loss(
    batch: MicroBatch, logprobs_T: Tensor, entropy_T: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    columns = batch.columns
    loss = -(logprobs_T * columns["advantages"] * columns["weights"])[columns["mask"]].sum()
    value = loss.detach()
    return loss, {"loss": value, "custom_trained": columns["mask"].sum(), "mine": value}


RUNS: dict[str, dict[str, Any]] = {
    "policy": {},
    "policy, two steps and a penalty": {
        "num_steps_per_rollout": 2,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "entropy_coef": 0.1,
    },
    "policy without corrections": {"use_tis": False, "calculate_per_token_loss": True},
    "policy on stale tokens": {"lag": 2},
    "sft": {"loss_type": "sft_loss", "shown": True},
    "sft with context": {"loss_type": "sft_loss", "shown": True, "prompt_loss_weight": 0.5},
    "custom": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": f"{__spec__.name}:counting_loss",
    },
}


def names_of(run: str) -> list[str]:
    flags = dict(RUNS[run])
    world = World([3] * 4, lag=flags.pop("lag", 0), shown=flags.pop("shown", False))
    with torch.random.fork_rng():
        learn(world, **flags)
    told = [message.metrics for message in (*world.of(Stepped), *world.of(PushDone))]
    return sorted({name for metrics in told for name in metrics})


@pytest.mark.parametrize("run", RUNS)
def test_a_short_run_has_the_metrics_that_it_had(run: str) -> None:
    assert names_of(run) == json.loads(FILE.read_text())[run]


def test_every_metric_of_a_short_run_is_declared() -> None:
    names = {name for run in json.loads(FILE.read_text()).values() for name in run}
    assert [name for name in sorted(names) if REGISTRY.find(name) is None] == []


def main() -> int:
    FILE.write_text(json.dumps({run: names_of(run) for run in RUNS}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
