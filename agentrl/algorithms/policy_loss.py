"""The policy-gradient objective on one micro-batch, and what its metrics are made of.

    loss = -agg( w * min(rho A, clip(rho) A) ) - c_H agg(H) + c_KL agg(KL)

    rho = pi / pi_prox           PPO ratio to the policy at the start of the iteration
    w   = f(pi_prox / mu)        truncated importance weight of the sampling engine, detached
    agg(x) = sum over trained tokens of x * weights, where `weights` are reciprocals of the step's
             global denominators (see `agentrl.learner.plan`)

Invariant I5 by construction: every formula sees only the K trained tokens of the micro-batch, so no
other position can receive a gradient or spoil a sum. A loss keeps no state.

Shape suffixes: T = packed tokens, K = trained tokens, S = sampled tokens (trained or not).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms.corrections import (
    KLEstimator,
    kl_estimate,
    log_ratio,
    truncated_weight,
)
from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.config.run import RunConfig

__all__ = ["MAX_AGE_BUCKET", "Objective", "policy_loss", "ppo_objective"]

#: Metrics by age pool all ages from this one on.
MAX_AGE_BUCKET = 8


@dataclass(frozen=True, slots=True)
class Objective:
    """Constants of the loss. `clip_c`: None turns the dual clip off; `kl_type`: None: there
    is no reference, and at `kl_coef` 0 its KL is only measured; `use_tis` False makes w = 1."""

    clip_low: float
    clip_high: float
    clip_c: float | None
    use_tis: bool
    tis_low: float
    tis_high: float
    entropy_coef: float
    kl_coef: float
    kl_type: KLEstimator | None

    @classmethod
    def from_config(cls, cfg: RunConfig) -> "Objective":
        """The objective that the flags ask for."""
        return cls(
            clip_low=cfg.eps_clip,
            clip_high=cfg.eps_clip if cfg.eps_clip_high is None else cfg.eps_clip_high,
            clip_c=cfg.eps_clip_c,
            use_tis=cfg.use_tis,
            tis_low=cfg.tis_clip_low,
            tis_high=cfg.tis_clip,
            entropy_coef=cfg.entropy_coef,
            kl_coef=cfg.kl_loss_coef,
            kl_type=cfg.kl_loss_type if cfg.use_kl_loss else None,
        )


def ppo_objective(
    logprobs_K: Tensor, prox_K: Tensor, advantages_K: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """`min(rho A, clip(rho, 1 - e, 1 + e_high) A)` of each token, and where the clip was active.

    PPO: Schulman et al. 2017, equation 7, https://arxiv.org/abs/1707.06347. Separate upper range:
    DAPO, Yu et al. 2025, section 3.1, https://arxiv.org/abs/2503.14476. Dual clip, for A < 0:
    `max(that, c A)`: Ye et al. 2020, equation 5, https://arxiv.org/abs/1912.09729.
    """
    rho_K = log_ratio(logprobs_K, prox_K).exp()
    plain_K = rho_K * advantages_K
    bounded_K = rho_K.clamp(1 - objective.clip_low, 1 + objective.clip_high) * advantages_K
    value_K = torch.minimum(plain_K, bounded_K)
    if objective.clip_c is not None:
        floor_K = torch.maximum(value_K, objective.clip_c * advantages_K)
        value_K = torch.where(advantages_K < 0, floor_K, value_K)
    return value_K, bounded_K.detach() < plain_K.detach()


def policy_loss(
    cfg: RunConfig, batch: MicroBatch, out: Outputs
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch, and what it measured.

    Columns read: mask, sampled, mu, advantages, weights, ages; `prox` (log pi_prox; the detached
    current log-probabilities when absent) and `reference` (only with a KL penalty).
    """
    objective, columns = Objective.from_config(cfg), batch.columns
    prox_T = columns.get("prox", out.logprobs_T.detach())
    trained_K = columns["mask"].nonzero().squeeze(1)
    logprobs_K = out.logprobs_T[trained_K].float()
    entropy_K = out.entropy_T[trained_K].float()
    prox_K = prox_T[trained_K].float()
    mu_K = columns["mu"][trained_K]
    weights_K = columns["weights"][trained_K]

    value_K, clipped_K = ppo_objective(
        logprobs_K, prox_K, columns["advantages"][trained_K], objective
    )
    w_K, truncated_K = _importance_weight(objective, prox_K, mu_K)
    pg_loss = -(w_K * value_K * weights_K).sum()
    loss = pg_loss
    if objective.entropy_coef != 0:
        loss = loss - objective.entropy_coef * (entropy_K * weights_K).sum()
    found = {
        "pg_loss": pg_loss,
        "entropy": _mean(entropy_K),
        "pg_clipfrac": _mean(clipped_K),
        "tis_clipfrac": _mean(truncated_K),
    }
    if objective.kl_type is not None:
        reference_K = columns["reference"][trained_K].float()
        kl_K = kl_estimate(logprobs_K, reference_K, objective.kl_type)
        kl_loss = (kl_K * weights_K).sum()
        if objective.kl_coef != 0:
            loss = loss + objective.kl_coef * kl_loss
        found["kl_loss"] = kl_loss
    found["loss"] = loss
    ratio_K = w_K * log_ratio(logprobs_K, prox_K).detach().exp()
    mismatch_K = kl_estimate(mu_K, prox_K, "k3")
    found |= _corrections("", ratio_K, mismatch_K)
    num_buckets = min(cfg.staleness_bound, MAX_AGE_BUCKET) + 1
    bucket_K = columns["ages"][trained_K].clamp(max=num_buckets - 1)
    for age in range(num_buckets):
        here_K = bucket_K == age
        found |= _corrections(f"/age_{age}", ratio_K[here_K], mismatch_K[here_K])
    found |= _differences(batch, prox_T)
    return loss, {name: value.detach().float() for name, value in found.items()}


def _importance_weight(objective: Objective, prox_K: Tensor, mu_K: Tensor) -> tuple[Tensor, Tensor]:
    """w of each token, and where it was truncated."""
    if not objective.use_tis:
        return torch.ones_like(mu_K), torch.zeros_like(mu_K, dtype=torch.bool)
    return truncated_weight(prox_K, mu_K, objective.tis_low, objective.tis_high)


def _corrections(suffix: str, ratio_K: Tensor, mismatch_K: Tensor) -> dict[str, Tensor]:
    sums = (ratio_K.sum(), ratio_K.square().sum(), ratio_K.new_tensor(ratio_K.numel()))
    return {f"ess{suffix}": torch.stack(sums), f"mismatch_kl{suffix}": _mean(mismatch_K)}


def _differences(batch: MicroBatch, prox_T: Tensor) -> dict[str, Tensor]:
    """|engine - learner| log-probability at the start of the iteration, masked tokens too."""
    sampled_S = batch.columns["sampled"].nonzero().squeeze(1)
    diff_S = (batch.columns["mu"][sampled_S] - prox_T[sampled_S].detach().float()).abs()
    on_policy_S = batch.columns["ages"][sampled_S] == 0
    found = {}
    for name, diff in (("logprob_diff", diff_S), ("logprob_diff_on_policy", diff_S[on_policy_S])):
        found[name] = _mean(diff)
        if diff.numel():
            found[f"{name}_max"] = diff.max()
    return found


def _mean(values: Tensor) -> Tensor:
    """Total and count."""
    values = values.detach().float()
    return torch.stack([values.sum(), values.new_tensor(values.numel())])
