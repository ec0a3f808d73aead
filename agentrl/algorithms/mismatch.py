"""How far the sampling engine is from the learner on one micro-batch, measured beside every loss.

    logprob_diff    |engine - learner| log-probability of the tokens that were sampled, masked ones
                    too; those of age 0 apart (`_on_policy`), and the largest (`_max`)
    kv_gap          the same of tokens of age 0 over a cache that older weights may have filled,
                    by the versions between (column `cached`); `_on_policy` leaves them out
    mismatch_kl     KL of the engine's from the learner's distribution, of trained tokens, by age
    log_ratio_m2    mean of (log pi / mu)^2 of trained tokens, by age: it grows before the others do
    ess             effective sample share of pi / mu, of trained tokens, by age; not truncated
    ess_sequence    the same of whole sequences, each of the age of its oldest trained token

All are of the learner at the start of the iteration: column `prox`, or the current policy where
that is it. A loss of the user's cannot leave them out, nor report others in their place.

Shape suffixes: T = packed tokens, K = trained tokens, S = sampled tokens (trained or not), N =
sequences with a trained token.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.ratios import kl_estimate, log_ratio
from agentrl.algorithms.rows import LOG_RATIO_LIMIT, LossFn, MicroBatch, Outputs
from agentrl.errors import DataError

__all__ = ["MAX_AGE_BUCKET", "mean", "sequences_of", "with_mismatch"]

#: Metrics by age pool all ages from this one on.
MAX_AGE_BUCKET = 8


def with_mismatch(loss_fn: LossFn, max_age: int) -> LossFn:
    """`loss_fn`, whose report has these too. Raises DataError where it names them itself."""

    def measured_loss(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        found = _mismatch(batch, out, max_age)
        report: Any  # the user's
        loss, report = loss_fn(batch, out)
        if not isinstance(report, Mapping):
            return loss, report  # refused where it is read
        if taken := sorted(report.keys() & found.keys()):
            raise DataError(
                f"the loss reports {', '.join(taken)}, which the learner measures: choose another "
                "name"
            )
        return loss, {**report, **found}

    return measured_loss


def _by_age(ages_K: Tensor, max_age: int) -> Iterator[tuple[str, Tensor]]:
    """What a metric's name ends with, and which tokens it is of: all, and those of each age."""
    yield "", torch.ones_like(ages_K, dtype=torch.bool)
    num_buckets = min(max_age, MAX_AGE_BUCKET) + 1
    bucket_K = ages_K.clamp(max=num_buckets - 1)
    for age in range(num_buckets):
        yield f"/age_{age}", bucket_K == age


def mean(values: Tensor) -> Tensor:
    """Total and count."""
    values = values.detach().float()
    return torch.stack([values.sum(), values.new_tensor(values.numel())])


@torch.no_grad()
def _mismatch(batch: MicroBatch, out: Outputs, max_age: int) -> dict[str, Tensor]:
    columns = batch.columns
    prox_T = columns.get("prox", out.logprobs_T).float()
    diff_S = (columns["mu"] - prox_T).abs()[columns["sampled"]]
    on_policy_S = columns["ages"][columns["sampled"]] == 0
    found = {}
    if "cached" in columns:
        cached_S = columns["cached"][columns["sampled"]]
        met_S = on_policy_S & (cached_S > 0)
        for suffix, here_M in _by_age(cached_S[met_S], max_age):
            if suffix not in ("", "/age_0"):
                found[f"kv_gap{suffix}"] = mean(diff_S[met_S][here_M])
        on_policy_S &= cached_S == 0
    for name, diff in (("logprob_diff", diff_S), ("logprob_diff_on_policy", diff_S[on_policy_S])):
        found[name] = mean(diff)
        if diff.numel():
            found[f"{name}_max"] = diff.max()
    trained_K = columns["mask"].nonzero().squeeze(1)
    found |= _drift(batch, prox_T, trained_K, max_age)
    return found


def _drift(batch: MicroBatch, prox_T: Tensor, trained_K: Tensor, max_age: int) -> dict[str, Tensor]:
    """How far the policies of trained tokens are apart, by their age."""
    mu_K, prox_K = batch.columns["mu"][trained_K], prox_T[trained_K]
    ages_K, sequences_K = batch.columns["ages"][trained_K], sequences_of(batch, trained_K)
    kl_K, gap_K = kl_estimate(mu_K, prox_K, "k3"), log_ratio(prox_K, mu_K)
    found = {}
    for suffix, here_K in _by_age(ages_K, max_age):
        found[f"mismatch_kl{suffix}"] = mean(kl_K[here_K])
        found[f"log_ratio_m2{suffix}"] = mean(gap_K[here_K].square())
        found[f"ess{suffix}"] = _moments(gap_K[here_K])
    num_sequences = len(batch.cu_seqlens) - 1
    gap_N = gap_K.new_zeros(num_sequences).index_add(0, sequences_K, gap_K)
    oldest_N = ages_K.new_full((num_sequences,), -1)
    oldest_N = oldest_N.scatter_reduce(0, sequences_K, ages_K, "amax")
    gap_N, oldest_N = gap_N[oldest_N >= 0], oldest_N[oldest_N >= 0]
    for suffix, here_N in _by_age(oldest_N, max_age):
        found[f"ess_sequence{suffix}"] = _moments(gap_N[here_N])
    return found


def sequences_of(batch: MicroBatch, trained_K: Tensor) -> Tensor:
    """Which sequence of a micro-batch each of these places lies in."""
    ends = batch.cu_seqlens[1:].to(trained_K)
    return torch.searchsorted(ends, trained_K, right=True)


def _moments(log_ratio_N: Tensor) -> Tensor:
    ratio_N = log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return torch.stack([ratio_N.sum(), ratio_N.square().sum(), ratio_N.new_tensor(len(ratio_N))])
