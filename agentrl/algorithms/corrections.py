"""Estimators for the gap between two policies, from the log-probabilities of sampled tokens.

Pure tensor functions without masks: callers pass trained tokens only.

Shape suffix: K = sampled tokens that are trained.
"""

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "LOG_RATIO_LIMIT",
    "KLEstimator",
    "effective_sample_share",
    "kl_estimate",
    "log_ratio",
    "sequence_mean",
    "truncated_weight",
]

KLEstimator = Literal["k1", "k2", "k3", "low_var_kl"]

#: Log-ratios are clamped to +- this before exp, so that no ratio overflows.
LOG_RATIO_LIMIT = 20.0
#: `low_var_kl` is clamped to +- this.
LOW_VAR_KL_LIMIT = 10.0


def log_ratio(logprobs_K: Tensor, base_K: Tensor) -> Tensor:
    """`log p - log q`, clamped to +-LOG_RATIO_LIMIT (no gradient beyond it)."""
    return (logprobs_K - base_K).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_mean(values_K: Tensor, sequences_K: Tensor, num_sequences: int) -> Tensor:
    """The mean of each token's sequence; `sequences_K`: which of them each token is of."""
    totals_S = values_K.new_zeros(num_sequences).index_add(0, sequences_K, values_K)
    counts_S = torch.bincount(sequences_K, minlength=num_sequences)
    found: Tensor = (totals_S / counts_S.clamp(min=1))[sequences_K]
    return found


def truncated_weight(
    prox_K: Tensor, mu_K: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """`clamp(pi_prox / mu, low, high)`, detached, and where the clamp was active.

    Truncated importance sampling: Ionides 2008, https://doi.org/10.1198/106186008X320456; between
    training and inference engines: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings
    You Off-Policy RL Training", https://fengyao.notion.site/off-policy-rl. The factor pi_prox / mu
    is the one of decoupled PPO: Hilton et al. 2022, https://arxiv.org/abs/2110.00641.
    """
    ratio_K = log_ratio(prox_K, mu_K).exp().detach()
    return ratio_K.clamp(low, high), (ratio_K < low) | (ratio_K > high)


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
