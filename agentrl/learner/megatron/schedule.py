"""The learning rate as a pure function of the optimizer steps taken."""

import math
from typing import Literal

__all__ = ["DecayStyle", "learning_rate"]

DecayStyle = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int,
    *,
    lr: float,
    min_lr: float,
    style: DecayStyle,
    warmup_steps: int,
    total_steps: int | None,
) -> float:
    """Rate of the step that follows `step` completed ones.

    Linear warm-up reaches `lr` in the `warmup_steps`-th step, so no step has rate 0; then the decay
    falls from `lr` to `min_lr`, which the last of `total_steps` has and every later one keeps.
    `total_steps` may be None for the constant style only.
    """
    if step < 0:
        raise ValueError(f"the number of completed steps is {step}; it cannot be negative")
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if style == "constant":
        return lr
    if total_steps is None:
        raise ValueError(f"the {style} decay needs to know how many steps there are")
    decay_steps = total_steps - warmup_steps
    progress = min(1.0, (step + 1 - warmup_steps) / decay_steps) if decay_steps > 0 else 1.0
    left = 1.0 - progress if style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return min_lr + (lr - min_lr) * left
