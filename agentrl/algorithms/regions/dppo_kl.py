"""`dppo`, with the KL in the place of total variation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.regions.dppo import DEVIATIONS
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DppoKl"]

#: Probabilities are kept this far from 0 and 1.
_LEAST = 1e-6


class DppoKl(Region):
    """Drops a token that moved in the direction of its advantage, where KL(mu || pi) of "this token
    or another" is above the bound. DPPO: Qi et al. 2026, equations 12 and 14,
    https://arxiv.org/abs/2602.04879."""

    deviations = DEVIATIONS
    bounds = (0.05,)
    units = ("largest KL, in nats",)

    def keeps(self, trained: Trained) -> Tensor:
        (limit,) = self.given
        pi_K = trained.logprobs_K.detach().exp().clamp(_LEAST, 1 - _LEAST)
        mu_K = trained.mu_K.exp().clamp(_LEAST, 1 - _LEAST)
        kl_K = mu_K * (mu_K / pi_K).log() + (1 - mu_K) * ((1 - mu_K) / (1 - pi_K)).log()
        return ~(((pi_K - mu_K) * trained.advantages_K > 0) & (kl_K > limit))
