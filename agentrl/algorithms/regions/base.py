"""What a trust region is: a rule that drops trained tokens whose policy has moved too far from mu.

A dropped token has no gradient and stays in the denominator of the loss, so that dropping never
amplifies what is left. Entropy and KL terms are not dropped. A rule judges the tokens of one
micro-batch, of which sequences are whole; or (`of_iteration`) once all rows of an iteration, over
all ranks.

Shape suffixes: K = trained tokens of a micro-batch, L = tokens of one trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.normalization import Total
from agentrl.algorithms.rows import Row, Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Band", "Region", "floor_defect"]


class Region:
    """`bounds`: the numbers behind its name in the flag, and what they are without. `units`: what
    each is, for messages. `deviations`: where it differs from its papers, for
    docs/objectives.md."""

    bounds: ClassVar[tuple[float, ...]]
    units: ClassVar[tuple[str, ...]]
    deviations: ClassVar[str] = ""
    of_iteration: ClassVar[bool] = False

    def __init__(self, *bounds: float) -> None:
        self.given = bounds

    @staticmethod
    def defect(*bounds: float) -> str | None:
        """What is wrong with these bounds."""
        return None if all(bound > 0 for bound in bounds) else "a bound is above 0"

    def keeps(self, trained: Trained) -> Tensor:
        """Bool, for each trained token of a micro-batch."""
        raise NotImplementedError

    def keeps_rows(self, rows: Sequence[Row], total: Total) -> Sequence[npt.NDArray[np.bool_]]:
        """For each row, a bool for each label; of rules `of_iteration`, in place of `keeps`.
        Collective: `total` is called equally often on all ranks."""
        raise NotImplementedError


def floor_defect(unit: str, low: float) -> str | None:
    """What is wrong with the lowest ratio that is kept."""
    return None if low < 1 else _defect_of(unit, low, "below")


def _defect_of(unit: str, bound: float, side: str) -> str:
    return (
        f"the {unit}, {bound:g}, is not {side} 1, the ratio where policy and engine agree: fresh "
        "tokens would be dropped"
    )


class Band(Region):
    """Keeps what has a ratio pi_prox / mu between two bounds: Liu et al. 2025, "When Speed Kills
    Stability", https://richardli.xyz/rl-collapse (rejection, MIS). Under `--use-rollout-logprobs`
    the ratio is pi / mu."""

    units = ("lowest ratio", "highest ratio")

    @staticmethod
    def defect(*bounds: float) -> str | None:
        low, high = bounds
        if not 0 <= low < high:
            return "the lowest ratio is 0 or more, and below the highest"
        return floor_defect("lowest ratio", low) or (
            None if high > 1 else _defect_of("highest ratio", high, "above")
        )

    def has_inside(self, log_ratio_K: Tensor) -> Tensor:
        """Which log-ratios lie between the bounds, both included."""
        low, high = self.given
        ratio_K = log_ratio_K.exp()
        return (ratio_K >= low) & (ratio_K <= high)
