"""The numbers of an iteration: measures of its steps, counts and header become named metrics.

Names are declared in `agentrl.telemetry.metrics`; what a loss reports under another name is logged
there once, and left out. Some come once for each age (`name/age_3`; the last bucket pools all older
ages), and the episodes' own metrics as `rollout/<name>` means; `rollout/part/<part>/<name>` is of
one part of a mixture. Values are floats, but for `train/age_histogram`, a list. A value that does
not exist (nothing trained, no tokens on policy) is left out, never zero.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.algorithms.grpo import has_zero_std
from agentrl.algorithms.role_rewards import by_name
from agentrl.learner.batch import BatchCounts
from agentrl.learner.iteration import IterationResult
from agentrl.learner.measures import Measures, joined, value_of
from agentrl.roles import POLICY, by_role
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.pass_rate import pass_rates_of_groups
from agentrl.types import GroupRows, LeaseHeader

__all__ = ["LogprobDiff", "lease_metrics", "train_metrics"]

#: Roles with a metric of their own.
_MAX_ROLES = 32


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """|engine - learner| log-probability of tokens sampled by the learner's own weights."""

    mean: float
    maximum: float
    num_tokens: int


def train_metrics(result: IterationResult) -> tuple[dict[str, float], LogprobDiff]:
    """Metrics of the optimizer steps, over all ranks. Steps that were skipped count as such and
    leave no other trace: their numbers are not finite."""
    steps = result.steps.get("policy", ())
    taken = [step for step in steps if not step.skipped]
    of_critic = [step for step in result.steps.get("critic", ()) if not step.skipped]
    measures = joined(step.metrics for step in taken)
    metrics: dict[str, float] = {
        "train/num_steps": len(taken),
        "train/num_skipped_steps": sum(s.skipped for each in result.steps.values() for s in each),
    }
    metrics |= _count_metrics(result.counts)
    if result.num_filtered is not None:
        metrics["rollout/num_filtered_samples"] = result.num_filtered
    if result.max_trained_age >= 0:
        metrics["train/age_max_trained"] = result.max_trained_age
    if taken:
        metrics["train/grad_norm"] = statistics.fmean(step.grad_norm for step in taken)
        metrics["train/lr"] = taken[-1].lr
        metrics |= _reported(measures, len(taken))
    if of_critic:
        metrics["train/critic_grad_norm"] = statistics.fmean(step.grad_norm for step in of_critic)
        metrics["train/critic_lr"] = of_critic[-1].lr
        metrics |= _reported(joined(step.metrics for step in of_critic), len(of_critic))
    first = steps[0] if steps else None
    if first is not None and not first.skipped and "kl_loss" in first.metrics:
        metrics["train/kl_first"] = first.metrics["kl_loss"][0]
    return metrics, _on_policy(measures)


def lease_metrics(
    header: LeaseHeader, ages: Sequence[int], *, logs_pass_rates: bool = False
) -> dict[str, Any]:
    """Metrics that the lease header alone tells; `ages`: its `age_histogram`. `logs_pass_rates`:
    pass@k of its groups are among them."""
    metrics: dict[str, Any] = {"train/age_histogram": list(ages)}
    if sum(ages):
        metrics["train/age_mean"] = sum(age * n for age, n in enumerate(ages)) / sum(ages)
    parts: dict[str, list[GroupRows]] = {}
    for group in header.groups:
        parts.setdefault(_part(group), []).append(group)
    for part, groups in parts.items():
        if part:
            named = _group_metrics(groups, logs_pass_rates).items()
            metrics |= {f"rollout/part/{part}/{name}": value for name, value in named}
    named = _group_metrics(header.groups, logs_pass_rates).items()
    metrics |= {f"rollout/{name}": value for name, value in named}
    return metrics | _role_metrics(header.groups)


def _role_metrics(groups: Sequence[GroupRows]) -> dict[str, float]:
    """The mean reward of each role's conversations, where there are roles. Roles beyond
    `_MAX_ROLES`, those with the fewest conversations, are one."""
    if all(row.meta.role == POLICY for group in groups for row in group.trajectories):
        return {}
    shown: dict[str, list[float]] = {}
    earned = by_role(rewards for group in groups for rewards in by_name(group))
    for role, rewards in earned.items():
        shown.setdefault(role.replace("/", "_"), []).extend(rewards)
    for role in sorted(shown, key=lambda role: (-len(shown[role]), role))[_MAX_ROLES:]:
        rewards = shown.pop(role)
        shown.setdefault("others", []).extend(rewards)
    return {
        f"rollout/role/{role}/reward_mean": statistics.fmean(rewards)
        for role, rewards in shown.items()
    }


def _part(group: GroupRows) -> str:
    """The part of a mixture that `group` belongs to; empty where there is none."""
    return group.facts[0].part if group.facts else ""


def _group_metrics(groups: Sequence[GroupRows], logs_pass_rates: bool) -> dict[str, float]:
    """What `groups` tell, by name."""
    rewards = [reward for group in groups for reward in group.rewards]
    rows = [row for group in groups for row in group.trajectories]
    num_episodes = sum(len(group.episodes) for group in groups)
    metrics = _episode_means(each for group in groups for each in group.metrics)
    metrics |= {"num_groups": len(groups), "num_episodes": num_episodes}
    if num_episodes:
        metrics["turns_mean"] = sum(row.meta.num_turns for row in rows) / num_episodes
    if num_sampled := sum(row.meta.num_sampled for row in rows):  # not of demonstrations
        zero_std = sum(has_zero_std(group.rewards) for group in groups)
        metrics |= {
            "reward_mean": statistics.fmean(rewards),
            "reward_std": statistics.pstdev(rewards),
            "zero_std_group_share": zero_std / len(groups),
            "response_length_mean": num_sampled / num_episodes,
        }
        if logs_pass_rates:
            metrics |= pass_rates_of_groups(group.rewards for group in groups)
    return metrics


def _reported(measures: Measures, num_steps: int) -> dict[str, float]:
    REGISTRY.check(f"train/{name}" for name in measures)
    values = {name: value_of(name, measure, num_steps) for name, measure in measures.items()}
    return {
        f"train/{name}": value
        for name, value in values.items()
        if value is not None and REGISTRY.find(f"train/{name}") is not None
    }


def _count_metrics(counts: BatchCounts) -> dict[str, float]:
    num_sampled = counts.num_trained + counts.num_masked + counts.num_removed
    metrics: dict[str, float] = {
        "train/num_tokens": counts.num_trained,
        "train/num_stale_tokens": counts.num_stale,
        "train/num_off_policy_tokens": counts.num_off_policy,
        "train/num_missing_trajectories": counts.num_missing,
    }
    if num_sampled:
        metrics["train/masked_token_share"] = 1 - counts.num_trained / num_sampled
    if counts.num_turns:
        metrics["train/masked_turn_share"] = counts.num_masked_turns / counts.num_turns
    return metrics


def _on_policy(measures: Measures) -> LogprobDiff:
    total, count = measures.get("logprob_diff_on_policy", (0.0, 0.0))
    if not count:
        return LogprobDiff(0.0, 0.0, 0)
    (maximum,) = measures["logprob_diff_on_policy_max"]
    return LogprobDiff(total / count, maximum, int(count))


def _episode_means(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for episode in metrics:
        for name, value in episode.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.fmean(found) for name, found in values.items()}
