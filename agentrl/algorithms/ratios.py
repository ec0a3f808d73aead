"""Estimators for the gap between two policies, from the log-probabilities of sampled tokens.

Pure tensor functions without masks: callers pass trained tokens only.

Shape suffix: K = sampled tokens that are trained.
"""

from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithms.rows import LOG_RATIO_LIMIT

__all__ = [
    "KLEstimator",
    "Outside",
    "bounded_weight",
    "effective_sample_share",
    "kl_estimate",
    "log_ratio",
]

KLEstimator = Literal["k1", "k2", "k3", "low_var_kl"]
#: What a ratio beyond its bounds counts.
Outside = Literal["truncate", "mask"]

#: `low_var_kl` is clamped to +- this.
LOW_VAR_KL_LIMIT = 10.0


def log_ratio(logprobs_K: Tensor, base_K: Tensor) -> Tensor:
    """`log p - log q`, clamped to +-LOG_RATIO_LIMIT (no gradient beyond it)."""
    return (logprobs_K - base_K).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def bounded_weight(
    log_ratio_K: Tensor, low: float, high: float, *, outside: Outside
) -> tuple[Tensor, Tensor]:
    """The ratio pi_prox / mu as a weight, and where it lay outside `[low, high]`. There it
    is the nearer bound (`truncate`) or 0 (`mask`).

    truncate: Ionides 2008, https://doi.org/10.1198/106186008X320456; between training and inference
    engines: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
    Training", https://fengyao.notion.site/off-policy-rl. The factor pi_prox / mu is the one of
    decoupled PPO: Hilton et al. 2022, https://arxiv.org/abs/2110.00641.
    mask: IcePop, Ling Team 2025, equations 1 and 2, https://arxiv.org/abs/2510.18855; there the
    bounds are 0.5 and 5.
    Of a whole sequence: Liu et al. 2025, "When Speed Kills Stability",
    https://richardli.xyz/rl-collapse.
    """
    ratio_K = log_ratio_K.exp()
    outside_K = (ratio_K < low) | (ratio_K > high)
    if outside == "mask":
        return ratio_K.masked_fill(outside_K, 0.0), outside_K
    return ratio_K.clamp(low, high), outside_K


def kl_estimate(logprobs_K: Tensor, reference_K: Tensor, kind: KLEstimator) -> Tensor:
    """Per-token estimate of KL(pi || reference) on samples of pi; d = log pi - log reference.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d: Schulman 2020, "Approximating KL Divergence",
    http://joschu.net/blog/kl-approx.html. low_var_kl: k3 clamped to +-10.
    """
    d_K = log_ratio(logprobs_K, reference_K)
    if kind == "k1":
        return d_K
    if kind == "k2":
        return d_K.square() / 2
    k3_K = torch.exp(-d_K) - 1 + d_K
    return k3_K if kind == "k3" else k3_K.clamp(-LOW_VAR_KL_LIMIT, LOW_VAR_KL_LIMIT)


def effective_sample_share(num: float, total: float, total_squared: float) -> float:
    """`(sum r)^2 / (n sum r^2)` of importance ratios r: 1 when all are equal, 1 / n when one of
    them carries everything; 0 without samples. Kish 1965, effective sample size divided by n."""
    denominator = num * total_squared
    return total * total / denominator if denominator > 0 else 0.0
