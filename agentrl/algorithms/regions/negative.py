"""Bad tokens that have become less likely already are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Region, floor_defect
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Negative"]


class Negative(Region):
    """Drops a token where A < 0 and pi / mu is below the bound.

    The lower clip of PPO with mu for the old policy, and no upper one. One-sided masks of the same
    kind: MiniMax-M1, equation 7, second case, https://arxiv.org/abs/2506.13585; DPPO, section 5.3,
    in probabilities, https://arxiv.org/abs/2602.04879.
    """

    bounds = (0.8,)
    units = ("lowest ratio",)

    @staticmethod
    def defect(*bounds: float) -> str | None:
        return Region.defect(*bounds) or floor_defect("lowest ratio", *bounds)

    def keeps(self, trained: Trained) -> Tensor:
        (low,) = self.given
        ratio_K = (trained.logprobs_K.detach() - trained.mu_K).exp()
        return ~((trained.advantages_K < 0) & (ratio_K < low))
