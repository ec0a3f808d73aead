"""Group advantages, with a clipped weight that no token loses its gradient by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.grpo import Grpo
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Cispo"]


class Cispo(Grpo):
    """`sg(clip(rho, 1 - e, 1 + e_high)) A log pi`, rho = pi / pi_prox of each token.

    CISPO: MiniMax-M1, Chen et al. 2025, equations 4 (objective) and 5 (clip),
    https://arxiv.org/abs/2506.13585.
    """

    deviations = (
        "there the lower bound is off (`--eps-clip 1`) and the mean is over all tokens "
        "(--calculate-per-token-loss); neither is set here by itself"
    )
    reads = Grpo.reads - {"eps_clip_c"}

    def objective(self, trained: Trained) -> tuple[Tensor, Tensor]:
        from agentrl.algorithms.policy_loss import clip_range
        from agentrl.algorithms.ratios import log_ratio

        rho_K = log_ratio(trained.logprobs_K, trained.prox_K).exp().detach()
        weight_K = rho_K.clamp(*clip_range(self.cfg))
        return weight_K * trained.advantages_K * trained.logprobs_K, weight_K != rho_K
