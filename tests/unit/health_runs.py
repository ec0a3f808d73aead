"""Iterations of a sound run, and how a learner's health checks see them one after another."""

from collections.abc import Iterable, Mapping

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.health import Health
from agentrl.learner.metrics import LogprobDiff

CFG = RunConfig(n_samples_per_prompt=8, rollout_batch_size=16)
NO_TOKENS = LogprobDiff(0.0, 0.0, 0)
#: An iteration of the default job, in the middle of it.
SOUND = {
    "rollout/num_groups": 16,
    "rollout/num_episodes": 128,
    "rollout/reward_mean": 0.4,
    "rollout/reward_std": 0.49,
    "rollout/zero_std_group_share": 0.56,
    "rollout/turns_mean": 1.8,
    "rollout/tool_use": 0.6,
    "rollout/tool_calls": 0.8,
    "rollout/tool_errors": 0.0,
    "rollout/truncated": 0.0,
    "train/num_steps": 2,
    "train/num_tokens": 1500,
    "train/masked_token_share": 0.0,
    "train/entropy": 0.16,
    "train/mismatch_kl/age_0": -1.6e-9,
}
#: Groups of equal rewards: nothing is computed, so there is nothing to tell of it.
IDLE = {
    "rollout/reward_mean": 0.0,
    "rollout/reward_std": 0.0,
    "rollout/zero_std_group_share": 1.0,
    "train/num_tokens": 0,
    "train/masked_token_share": None,
    "train/entropy": None,
}
NO_CALL = {"rollout/tool_use": 0.0, "rollout/tool_calls": 0.0, "rollout/turns_mean": 1.0}


def sound(changes: Mapping[str, float | None] = {}) -> dict[str, float]:
    """The metrics of a sound iteration, changed; None leaves one out."""
    return {name: value for name, value in {**SOUND, **changes}.items() if value is not None}


def play(
    iterations: Iterable[Mapping[str, float]],
    cfg: RunConfig = CFG,
    *,
    first: int = 1,
    on_policy: LogprobDiff = NO_TOKENS,
) -> Health:
    """A run's health after these iterations."""
    health = Health(load_algorithm(cfg))
    for number, metrics in enumerate(iterations, first):
        health.check(number, metrics, on_policy)
    return health
