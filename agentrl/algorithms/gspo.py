"""Group advantages, with one ratio for each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.grpo import Grpo
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Gspo"]


class Gspo(Grpo):
    """`min(s A, clip(s, 1 - e, 1 + e_high) A)`, s = exp(the sequence's mean of log pi / pi_prox).

    GSPO: Zheng et al. 2025, equations 5 (objective), 6 (advantage, that of GRPO) and 7 (ratio),
    https://arxiv.org/abs/2507.18071. Its clip range is about 3e-4, not PPO's 0.2: set --eps-clip.
    """

    deviations = (
        "a sequence is a trajectory segment (an agent's episode may have several); "
        "its mean is over trained tokens alone, so that what staleness masks has no say; "
        "sampling engine and learner are weighted token by token (--use-tis)"
    )
    reads = Grpo.reads - {"eps_clip_c"}

    def objective(self, trained: Trained) -> tuple[Tensor, Tensor]:
        from agentrl.algorithms.policy_loss import clip_range, clipped_surrogate
        from agentrl.algorithms.ratios import log_ratio

        log_ratio_K = log_ratio(trained.logprobs_K, trained.prox_K)
        ratio_K = trained.sequence_mean(log_ratio_K).exp()
        return clipped_surrogate(ratio_K, trained.advantages_K, clip_range(self.cfg))
