"""The policy-gradient objective on one micro-batch, and what its metrics are made of.

    loss = -agg( w * k * J ) - c_H agg(H) + c_KL agg(KL)

    J   = min(rho A, clip(rho) A)       of each token; an algorithm may have another (`objective`)
    rho = pi / pi_prox           PPO ratio to the policy at the start of the iteration; under
                                 `--use-rollout-logprobs` to the engine: mu stands for pi_prox
    w   = f(pi_prox / mu)        importance weight of the sampling engine, truncated or masked, of a
                                 token or its sequence (`--tis-mode`, `--tis-level`), or the user's
                                 (`correction`); detached
    k   = 0 or 1                 whether the trust regions keep the token (`regions`)
    KL  of each token; `--use-unbiased-kl` has it times pi / mu: DeepSeek-V3.2, equation 7,
        https://arxiv.org/abs/2512.02556, where pi_old is the policy that sampled. (slime's ratio is
        to the start of the iteration.)
    agg(x) = sum over trained tokens of x * weights, where `weights` are reciprocals of the step's
             global denominators (see `agentrl.learner.plan`)

Invariant I5 by construction: every formula sees only the K trained tokens of the micro-batch, so no
other position can receive a gradient or spoil a sum. A loss keeps no state.

Shape suffixes: T = packed tokens, K = trained tokens.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from agentrl.algorithms.correction import Correction
from agentrl.algorithms.mismatch import mean, sequences_of
from agentrl.algorithms.penalties import teacher_column
from agentrl.algorithms.ratios import bounded_weight, kl_estimate, log_ratio
from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.rows import MicroBatch, Outputs, Trained
from agentrl.config.run import RunConfig

__all__ = ["clip_range", "clipped_surrogate", "policy_loss", "ppo_objective"]

#: -> what to maximize, for each trained token, and where a clip was active.
Objective = Callable[[Trained], tuple[Tensor, Tensor]]


def clip_range(cfg: RunConfig) -> tuple[float, float]:
    """`1 - e, 1 + e_high`. A separate upper range: DAPO, Yu et al. 2025, section 3.1,
    https://arxiv.org/abs/2503.14476."""
    high = cfg.eps_clip if cfg.eps_clip_high is None else cfg.eps_clip_high
    return 1 - cfg.eps_clip, 1 + high


def clipped_surrogate(
    rho_K: Tensor,
    advantages_K: Tensor,
    bounds: tuple[float, float],
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`min(rho A, clip(rho) A)`, and where the clip was active. PPO: Schulman et al. 2017, equation
    7, https://arxiv.org/abs/1707.06347. With `dual_clip` c it is `max(that, c A)` where A < 0: Ye
    et al. 2020, equation 5, https://arxiv.org/abs/1912.09729."""
    plain_K = rho_K * advantages_K
    bounded_K = rho_K.clamp(*bounds) * advantages_K
    value_K = torch.minimum(plain_K, bounded_K)
    if dual_clip is not None:
        floor_K = torch.maximum(value_K, dual_clip * advantages_K)
        value_K = torch.where(advantages_K < 0, floor_K, value_K)
    return value_K, bounded_K.detach() < plain_K.detach()


def ppo_objective(cfg: RunConfig, trained: Trained) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of each token, with a dual clip if `--eps-clip-c` is given."""
    rho_K = log_ratio(trained.logprobs_K, trained.prox_K).exp()
    return clipped_surrogate(rho_K, trained.advantages_K, clip_range(cfg), cfg.eps_clip_c)


def policy_loss(
    cfg: RunConfig,
    batch: MicroBatch,
    out: Outputs,
    objective: Objective,
    regions: Sequence[Region] = (),
    correction: Correction | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch, and what it measured.

    Columns read: mask, mu, advantages, weights; `prox` (log pi_prox; the detached current
    log-probabilities when absent), `reference` (only with a KL penalty) and `kept` (bool; only with
    a trust region that judges iterations), `pg_weights` (of the policy gradient alone, where a
    function of the user's adds its tokens up).
    """
    columns = batch.columns
    trained_K = columns["mask"].nonzero().squeeze(1)
    trained = _trained(cfg, batch, out, trained_K)
    logprobs_K, mu_K = trained.logprobs_K, trained.mu_K
    entropy_K = out.entropy_T[trained_K].float()
    weights_K = columns["weights"][trained_K]

    value_K, clipped_K = objective(trained)
    kept_K = _kept(regions, columns, trained_K, trained)
    if correction is None:
        w_K, outside_K = _importance_weight(cfg, trained)
        found = {"tis_clipfrac": mean(outside_K)}
    else:
        w_K, found = correction(cfg, batch, trained_K, trained)
        kept_K &= w_K > 0
    if regions or correction is not None:
        found["dropped"] = mean(~kept_K)
        w_K = w_K * kept_K
    pg_weights_K = columns["pg_weights"][trained_K] if "pg_weights" in columns else weights_K
    pg_loss = -(w_K * value_K * pg_weights_K).sum()
    loss = pg_loss
    if cfg.entropy_coef != 0:
        loss = loss - cfg.entropy_coef * (entropy_K * weights_K).sum()
    found |= {"pg_loss": pg_loss, "entropy": mean(entropy_K), "pg_clipfrac": mean(clipped_K)}
    if cfg.use_kl_loss:
        reference_K = columns["reference"][trained_K].float()
        kl_K = kl_estimate(logprobs_K, reference_K, cfg.kl_loss_type)
        if cfg.use_unbiased_kl:
            kl_K = log_ratio(logprobs_K, mu_K).exp() * kl_K
        kl_loss = (kl_K * weights_K).sum()
        if cfg.kl_loss_coef != 0:
            loss = loss + cfg.kl_loss_coef * kl_loss
        found["kl_loss"] = kl_loss
    if (teacher := teacher_column(cfg)) in columns:
        found["opd_reverse_kl"] = mean(trained.start_K - columns[teacher][trained_K])
    found["loss"] = loss
    return loss, {name: value.detach().float() for name, value in found.items()}


def _trained(cfg: RunConfig, batch: MicroBatch, out: Outputs, trained_K: Tensor) -> Trained:
    columns = batch.columns
    logprobs_K = out.logprobs_T[trained_K].float()
    now_K, mu_K = logprobs_K.detach(), columns["mu"][trained_K]
    prox_K = columns["prox"][trained_K].float() if "prox" in columns else now_K
    is_to_engine = cfg.use_rollout_logprobs
    return Trained(
        logprobs_K=logprobs_K,
        prox_K=mu_K if is_to_engine else prox_K,
        mu_K=mu_K,
        start_K=now_K if is_to_engine else prox_K,
        advantages_K=columns["advantages"][trained_K],
        sequences_K=sequences_of(batch, trained_K),
        num_sequences=len(batch.cu_seqlens) - 1,
    )


def _importance_weight(cfg: RunConfig, trained: Trained) -> tuple[Tensor, Tensor]:
    """w of each token, and where its ratio left the bounds."""
    mu_K = trained.mu_K
    if cfg.use_rollout_logprobs or not cfg.use_tis:
        return torch.ones_like(mu_K), torch.zeros_like(mu_K, dtype=torch.bool)
    log_ratio_K = trained.engine_log_ratio(cfg.tis_level)
    return bounded_weight(log_ratio_K, cfg.tis_clip_low, cfg.tis_clip, outside=cfg.tis_mode)


def _kept(
    regions: Sequence[Region], columns: Mapping[str, Tensor], trained_K: Tensor, trained: Trained
) -> Tensor:
    """Which tokens all trust regions keep."""
    kept_K = torch.ones_like(trained.mu_K, dtype=torch.bool)
    for region in regions:
        kept_K &= columns["kept"][trained_K] if region.of_iteration else region.keeps(trained)
    return kept_K
