"""A sequence is dropped whole for one token that the learner finds next to impossible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Region, floor_defect
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Veto"]


class Veto(Region):
    """Drops sequences in which pi_prox / mu of some token is below the bound.

    Liu et al. 2025, "When Speed Kills Stability", https://richardli.xyz/rl-collapse; the bound is
    the one in slime's examples."""

    bounds = (1e-4,)
    units = ("lowest ratio of a token",)

    @staticmethod
    def defect(*bounds: float) -> str | None:
        return Region.defect(*bounds) or floor_defect("lowest ratio of a token", *bounds)

    def keeps(self, trained: Trained) -> Tensor:
        (low,) = self.given
        is_below_K = (trained.engine_log_ratio("token").exp() < low).float()
        return trained.sequence_sum(is_below_K) == 0
