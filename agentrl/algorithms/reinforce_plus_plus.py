"""Returns of each token, with the KL in the reward, normalized over the batch; no groups."""

from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.penalties import kl_penalty
from agentrl.algorithms.rows import Row
from agentrl.config.run import RunConfig

__all__ = ["ReinforcePlusPlus"]


class ReinforcePlusPlus(Algorithm):
    """`A_t = sum over k >= t of gamma^(k - t) r_k`, normalized over the iteration;
    `r_k = -kl_coef (log pi_prox - log pi_ref)`, and R more at the last token.

    REINFORCE++: Hu et al. 2025, section 3, https://arxiv.org/abs/2501.03262, which has no discount
    (gamma 1); with one, slime's.
    """

    deviations = (
        "a return is over the sampled tokens of a trajectory segment, each of which ends with the "
        "reward of its episode; "
        "tokens that are not trained pay no KL; "
        "the ratio is to the start of the iteration"
    )
    reads = TERMS | {"eps_clip_c", "kl_coef", "gamma"}
    requires = frozenset({"normalize_advantages"})

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        if cfg.kl_coef != 0:
            compared = {"reference"} | ({"prox"} if self.needs.later_prox else set())
            passes = self.needs.passes | compared
            self.needs = msgspec.structs.replace(self.needs, passes=passes)

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        sampled_L = row.columns["sampled"]
        rewards_N = kl_penalty(self.cfg, row, self.cfg.kl_coef, "reference")[sampled_L]
        rewards_N[-1:] += row.credit.value
        returns = accumulate(rewards_N[::-1], lambda later, now: now + self.cfg.gamma * later)
        advantages_L = np.zeros(len(sampled_L), np.float32)
        advantages_L[sampled_L] = list(returns)[::-1]
        return advantages_L
