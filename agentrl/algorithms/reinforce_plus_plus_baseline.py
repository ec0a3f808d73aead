"""Rewards against the mean of their group, normalized over the batch."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.grpo import has_zero_std
from agentrl.algorithms.penalties import kl_penalty
from agentrl.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from agentrl.algorithms.rows import Row
from agentrl.config.run import RunConfig

__all__ = ["ReinforcePlusPlusBaseline"]


class ReinforcePlusPlusBaseline(ReinforcePlusPlus):
    """`A_t = R - mean of the group - kl_coef (log pi_prox - log pi_ref)`, normalized over the
    iteration.

    REINFORCE++ with baseline: Hu et al. 2025, section 3, https://arxiv.org/abs/2501.03262.
    """

    deviations = (
        "the KL, which the paper adds to the loss, is here as in slime each token's own and not a "
        "return; --use-kl-loss is the paper's"
    )
    reads = TERMS | {"eps_clip_c", "kl_coef"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, min_group=2)

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        if has_zero_std(rewards):
            return [0.0] * len(rewards)
        mean = math.fsum(rewards) / len(rewards)
        return [reward - mean for reward in rewards]

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        penalty_L = kl_penalty(self.cfg, row, self.cfg.kl_coef, "reference")
        return Algorithm.token_advantages(self, row) + penalty_L.astype(np.float32)
