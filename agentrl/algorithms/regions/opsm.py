"""Bad sequences from which the policy has moved away already are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Opsm"]


class Opsm(Region):
    """Drops tokens with A < 0 of sequences whose mean of log mu - log pi is above the bound.

    Off-policy sequence masking: DeepSeek-V3.2, equations 8 and 9, https://arxiv.org/abs/2512.02556,
    which names no bound; the default is slime's. There too mu is the engine's. (slime's is the
    policy at the start of the iteration, unless it has --use-rollout-logprobs.)
    """

    bounds = (1e-4,)
    units = ("largest KL, in nats a token",)

    def keeps(self, trained: Trained) -> Tensor:
        (limit,) = self.given
        moved_K = trained.mu_K - trained.logprobs_K.detach()
        kl_K = trained.sequence_mean(moved_K)
        return ~((trained.advantages_K < 0) & (kl_K > limit))
