"""Leave-one-out advantages: each reward against the mean of the others."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.grpo import has_zero_std
from agentrl.config.run import RunConfig

__all__ = ["Rloo"]


class Rloo(Algorithm):
    """`R - mean of the other rewards of the group`, which is unbiased: no reward is in its own
    baseline.

    RLOO: Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE; Ahmadian et al. 2024,
    equation 8, https://arxiv.org/abs/2402.14740. Deviations: the ratio is clipped as PPO's, for
    tokens are off-policy here, and there is no KL in the reward. A group of equal rewards has
    advantage exactly 0.
    """

    reads = TERMS | {"eps_clip_c"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, min_group=2)

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        if has_zero_std(rewards):
            return [0.0] * len(rewards)
        total, others = math.fsum(rewards), len(rewards) - 1
        return [reward - (total - reward) / others for reward in rewards]
