"""The scenarios of a table: every combination of what is to be tried, the first value first.

Facts have the names of the flags of `agentrl simulate`, which says what they mean.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sim.engine import Speed
from agentrl.sim.scenario import LearnerCost, Scenario
from agentrl.sim.workload import Lognormal, Workload

__all__ = ["scenarios"]

_TRIED = ("async_buffer_size", "update_weights_interval", "max_staleness", "staleness_policy")
#: Fields of a scenario that are facts of the same name.
_SAME = (
    *("seed", "rollout_batch_size", "n_samples_per_prompt", "num_steps_per_rollout"),
    "sglang_server_concurrency",
)


def scenarios(facts: Mapping[str, Any]) -> Iterator[Scenario]:
    """Where `rollout_num_gpus` is None, a quarter, half and three quarters of `num_gpus`; where
    `max_staleness` is, B + I - 1. Raises ConfigError for what cannot be simulated."""
    size, gpus = facts["rollout_num_gpus_per_engine"], facts["num_gpus"]
    splits = facts["rollout_num_gpus"] or _splits(gpus, size)
    tried = (facts[name] or [None] for name in _TRIED)
    for rollout, ahead, interval, bound, policy in itertools.product(splits, *tried):
        if rollout % size:
            raise ConfigError(
                f"--rollout-num-gpus {rollout} does not divide into engines of {size}"
            )
        yield Scenario(
            **{name: facts[name] for name in _SAME},
            workload=_workload(facts),
            iterations=facts["num_rollout"],
            async_buffer_size=ahead,
            update_weights_interval=interval,
            max_staleness=ahead + interval - 1 if bound is None else bound,
            staleness_policy=policy,
            num_engines=rollout // size,
            gpus_per_engine=size,
            num_learner_gpus=gpus - rollout,
            speed=Speed(facts["token_s"], facts["request_s"]),
            learner=LearnerCost(
                step_gpu_s=facts["step_gpu_s"],
                token_gpu_s=facts["token_gpu_s"],
                push_s=facts["push_s"],
            ),
        )


def _splits(gpus: int, size: int) -> list[int]:
    """Numbers of GPUs that are engines of `size` GPUs each."""
    return sorted({max(1, gpus * quarters // (4 * size)) * size for quarters in (1, 2, 3)})


def _workload(facts: Mapping[str, Any]) -> Workload:
    return Workload(
        tokens=Lognormal(*facts["tokens"]),
        task_sigma=facts["task_sigma"],
        max_tokens=facts["max_tokens"],
        turns=facts["turns"],
        tool_s=Lognormal(*facts["tool_s"]),
        played=facts.get("played", ()),
    )
