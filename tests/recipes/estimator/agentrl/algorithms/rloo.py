"""Leave-one-out advantages: each reward against the mean of the others."""

import math
from collections.abc import Sequence

from agentrl.algorithms.base import Algorithm

__all__ = ["Rloo"]


class Rloo(Algorithm):
    """`R - mean of the others`. Ahmadian et al. 2024, equation 8, https://arxiv.org/abs/2402.14740.
    A group of one has advantage 0."""

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        others = len(rewards) - 1
        total = math.fsum(rewards)
        return [reward - (total - reward) / others if others else 0.0 for reward in rewards]
