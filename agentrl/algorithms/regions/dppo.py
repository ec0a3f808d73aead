"""Tokens whose probability has moved too far in the direction of their advantage are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DEVIATIONS", "Dppo"]

#: Of both of its masks.
DEVIATIONS = (
    "there the weight is pi / mu, cut at a large number; here it is that of `--use-tis`, cut at "
    "`--tis-clip` (with one step for each batch `--tis-clip 5` is much the same), and with several "
    "steps the clip of pi / pi_prox acts besides"
)


class Dppo(Region):
    """Drops a token where A > 0 and pi - mu > d, or A < 0 and mu - pi > d, in probabilities.

    DPPO: Qi et al. 2026, equations 12 (mask) and 13 (total variation of the sampled token),
    https://arxiv.org/abs/2602.04879.
    """

    deviations = DEVIATIONS
    bounds = (0.2,)
    units = ("largest change of a probability",)

    @staticmethod
    def defect(*bounds: float) -> str | None:
        return None if 0 < bounds[0] < 1 else "a change of a probability is between 0 and 1"

    def keeps(self, trained: Trained) -> Tensor:
        (limit,) = self.given
        rise_K = trained.logprobs_K.detach().exp() - trained.mu_K.exp()
        return ~(rise_K * trained.advantages_K.sign() > limit)
