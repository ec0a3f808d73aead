"""The numbers of an iteration: sums of steps, ranks and header become named metrics.

Pure. `METRIC_NAMES` lists every fixed name; `AGE_METRICS` come once for each age (`name/age_3`; the
last bucket pools all older ages), and the episodes' own metrics as `rollout/<name>` means. Values
are floats, but for `train/age_histogram`, a list. A value that does not exist (nothing trained, no
tokens on policy) is left out, never zero.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.learner.advantage import has_zero_std
from agentrl.learner.backend import StepResult
from agentrl.learner.batch import BatchCounts
from agentrl.learner.corrections import effective_sample_share
from agentrl.learner.iteration import IterationResult
from agentrl.learner.loss import slot
from agentrl.types import LeaseHeader

__all__ = ["AGE_METRICS", "METRIC_NAMES", "LogprobDiff", "lease_metrics", "train_metrics"]

METRIC_NAMES = (
    "train/loss",
    "train/pg_loss",
    "train/kl_loss",
    "train/kl_first",
    "train/nll",
    "train/entropy",
    "train/pg_clipfrac",
    "train/tis_clipfrac",
    "train/ess",
    "train/mismatch_kl",
    "train/logprob_diff",
    "train/logprob_diff_max",
    "train/logprob_diff_on_policy",
    "train/logprob_diff_on_policy_max",
    "train/grad_norm",
    "train/lr",
    "train/num_steps",
    "train/num_skipped_steps",
    "train/num_tokens",
    "train/masked_token_share",
    "train/masked_turn_share",
    "train/num_stale_tokens",
    "train/num_off_policy_tokens",
    "train/num_missing_trajectories",
    "train/age_histogram",
    "train/age_mean",
    "train/age_max_trained",
    "rollout/num_groups",
    "rollout/num_episodes",
    "rollout/reward_mean",
    "rollout/reward_std",
    "rollout/zero_std_group_share",
    "rollout/response_length_mean",
    "rollout/turns_mean",
    "perf/lease_wait_s",
    "perf/iteration_s",
    "perf/learner_idle_share",
    "perf/push_s",
    "perf/push_pause_s",
    "perf/push_bytes",
    "perf/eval_hold_s",
)

AGE_METRICS = ("train/ess", "train/mismatch_kl")


@dataclass(frozen=True, slots=True)
class LogprobDiff:
    """|engine - learner| log-probability of tokens sampled by the learner's own weights."""

    mean: float
    maximum: float
    num_tokens: int


def train_metrics(
    result: IterationResult, num_ranks: int, num_buckets: int
) -> tuple[dict[str, float], LogprobDiff]:
    """Metrics of the optimizer steps, over all ranks. Steps that were skipped count as such and
    leave no other trace: their numbers are not finite."""
    taken = [step for step in result.steps if not step.skipped]
    sums = _add([step.metrics for step in taken])
    metrics: dict[str, float] = {
        "train/num_steps": len(taken),
        "train/num_skipped_steps": len(result.steps) - len(taken),
    }
    metrics |= _count_metrics(result.counts)
    if result.max_trained_age >= 0:
        metrics["train/age_max_trained"] = result.max_trained_age
    if taken:
        metrics |= _step_means(taken, sums)
    first = result.steps[0] if result.steps else None
    if first is not None and not first.skipped and "kl_loss" in first.metrics:
        metrics["train/kl_first"] = first.metrics["kl_loss"]
    if sums.get("num_demonstrated"):
        metrics["train/nll"] = sums["nll"] / sums["num_demonstrated"]
    if _total(sums, "trained@", range(num_buckets)) > 0:
        metrics |= _token_means(sums, num_buckets)
    diff = _diff(sums, "diff", num_ranks)
    on_policy = _diff(sums, "diff_on_policy", num_ranks)
    for name, value in (("logprob_diff", diff), ("logprob_diff_on_policy", on_policy)):
        if value.num_tokens:
            metrics[f"train/{name}"] = value.mean
            metrics[f"train/{name}_max"] = value.maximum
    return metrics, on_policy


def lease_metrics(header: LeaseHeader, ages: Sequence[int]) -> dict[str, Any]:
    """Metrics that the lease header alone tells; `ages`: its `age_histogram`."""
    rewards = [reward for group in header.groups for reward in group.rewards]
    rows = [row for group in header.groups for row in group.trajectories]
    num_episodes = sum(len(group.episodes) for group in header.groups)
    metrics: dict[str, Any] = _episode_means(m for group in header.groups for m in group.metrics)
    metrics |= {
        "rollout/num_groups": len(header.groups),
        "rollout/num_episodes": num_episodes,
        "train/age_histogram": list(ages),
    }
    if sum(ages):
        metrics["train/age_mean"] = sum(age * n for age, n in enumerate(ages)) / sum(ages)
    if num_episodes:
        metrics["rollout/turns_mean"] = sum(row.meta.num_turns for row in rows) / num_episodes
    if num_sampled := sum(row.meta.num_sampled for row in rows):  # not of demonstrations
        zero_std = sum(has_zero_std(group.rewards) for group in header.groups)
        metrics |= {
            "rollout/reward_mean": statistics.fmean(rewards),
            "rollout/reward_std": statistics.pstdev(rewards),
            "rollout/zero_std_group_share": zero_std / len(header.groups),
            "rollout/response_length_mean": num_sampled / num_episodes,
        }
    return metrics


def _step_means(taken: Sequence[StepResult], sums: Mapping[str, float]) -> dict[str, float]:
    means = {
        f"train/{name}": sums[name] / len(taken)
        for name in sums
        if name in ("loss", "pg_loss", "kl_loss") or name.startswith("custom_")
    }
    means["train/grad_norm"] = statistics.fmean(step.grad_norm for step in taken)
    means["train/lr"] = taken[-1].lr
    return means


def _token_means(sums: Mapping[str, float], num_buckets: int) -> dict[str, float]:
    ages = range(num_buckets)
    num_trained = _total(sums, "trained@", ages)
    metrics = {
        "train/entropy": sums["entropy"] / num_trained,
        "train/pg_clipfrac": sums["clipped"] / num_trained,
        "train/tis_clipfrac": sums["truncated"] / num_trained,
        **_correction(sums, ages, ""),
    }
    for age in ages:
        if sums[f"trained@{age}"] > 0:
            metrics |= _correction(sums, [age], f"/age_{age}")
    return metrics


def _correction(sums: Mapping[str, float], ages: Iterable[int], suffix: str) -> dict[str, float]:
    ages = list(ages)
    num = _total(sums, "trained@", ages)
    ratio, squared = _total(sums, "ratio@", ages), _total(sums, "ratio_squared@", ages)
    return {
        f"train/ess{suffix}": effective_sample_share(num, ratio, squared),
        f"train/mismatch_kl{suffix}": _total(sums, "mismatch@", ages) / num,
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


def _diff(sums: Mapping[str, float], name: str, num_ranks: int) -> LogprobDiff:
    num_tokens = int(sums.get(f"num_{name}", 0))
    if num_tokens == 0:
        return LogprobDiff(0.0, 0.0, 0)
    maximum = max(sums[slot(f"max_{name}", rank)] for rank in range(num_ranks))
    return LogprobDiff(sums[name] / num_tokens, maximum, num_tokens)


def _episode_means(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for episode in metrics:
        for name, value in episode.items():
            values.setdefault(name, []).append(value)
    return {f"rollout/{name}": statistics.fmean(found) for name, found in values.items()}


def _add(maps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for values in maps:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _total(sums: Mapping[str, float], prefix: str, ages: Iterable[int]) -> float:
    return sum(sums.get(f"{prefix}{age}", 0.0) for age in ages)
