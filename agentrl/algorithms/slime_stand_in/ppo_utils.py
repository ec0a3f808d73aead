"""`compute_policy_loss` and `compute_approx_kl`: terms of a loss, by agentrl's own formulas.

Shape suffix: R = tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.policy_loss import clipped_surrogate
from agentrl.algorithms.ratios import KLEstimator, kl_estimate, log_ratio

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["compute_approx_kl", "compute_policy_loss"]


def compute_policy_loss(
    ppo_kl: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float,
    eps_clip_c: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of PPO's clipped surrogate [R], and where the clip was active [R], 0 or 1. `ppo_kl`:
    old less new log-probabilities [R]."""
    bounds = (1 - eps_clip, 1 + eps_clip_high)
    ratio_R = log_ratio(-ppo_kl, ppo_kl.new_zeros(())).exp()
    value_R, clipped_R = clipped_surrogate(ratio_R, advantages, bounds, eps_clip_c)
    return -value_R, clipped_R.float()


def compute_approx_kl(
    log_probs: Tensor,
    log_probs_base: Tensor,
    kl_loss_type: KLEstimator,
    importance_ratio: Tensor | None = None,
) -> Tensor:
    """Per-token estimate of KL(pi || base) [R], times `importance_ratio` if there is one."""
    kl_R = kl_estimate(log_probs.float(), log_probs_base.float(), kl_loss_type)
    return kl_R if importance_ratio is None else importance_ratio * kl_R
