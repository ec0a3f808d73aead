"""What functions that log compute their figures with."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["compute_rollout_step", "compute_statistics", "dict_add_prefix"]


def compute_statistics(values: Iterable[float]) -> dict[str, float]:
    """mean, median, max and min."""
    found = [float(value) for value in values]
    mean, median = statistics.fmean(found), statistics.median(found)
    return {"mean": mean, "median": median, "max": max(found), "min": min(found)}


def dict_add_prefix(figures: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The same figures under longer names."""
    return {prefix + name: value for name, value in figures.items()}


def compute_rollout_step(args: Any, rollout_id: int) -> int:
    """Where an iteration stands on the axis of rollouts: its number, or the optimizer steps until
    then (--wandb-always-use-train-step)."""
    counts_steps = args.wandb_always_use_train_step
    return rollout_id * (args.num_steps_per_rollout if counts_steps else 1)
