"""What a function of `--rollout-function-path` returns."""

from dataclasses import dataclass
from typing import Any

__all__ = ["RolloutFnEvalOutput", "RolloutFnTrainOutput"]


@dataclass
class RolloutFnTrainOutput:
    """`samples`: groups, each a list of samples; an episode that has left several samples is a list
    of them in place of one. `metrics`: numbers by name."""

    samples: list[list[Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """`data`: for each set its `rewards`, and its `truncated` and `samples` if there are any, in
    the same order."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None
