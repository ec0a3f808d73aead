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

No shape here depends on a value, so a GPU does not wait for its host: what is not meant adds 0 to a
sum. Of no tokens the largest difference is -inf, which nobody reports (`learner/measures.py`).

Shape suffixes: T = packed tokens, K = trained tokens, N = sequences, X = either of T and N, M = all
that are meant, then those of each age.
"""

import math
from collections.abc import Mapping
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


def _suffixes(max_age: int) -> list[str]:
    """What metrics by age end with: nothing for all of them, then one for each age."""
    return ["", *(f"/age_{age}" for age in range(min(max_age, MAX_AGE_BUCKET) + 1))]


def _by_age(meant_X: Tensor, ages_X: Tensor, max_age: int) -> Tensor:
    """MX, bool: which of those that are `meant` a metric of each suffix is of."""
    num_buckets = len(_suffixes(max_age)) - 1
    buckets_M = torch.arange(num_buckets, device=ages_X.device).to(ages_X.dtype)
    bucket_X = ages_X.clamp(max=num_buckets - 1)
    every_MX = torch.cat([meant_X[None], bucket_X == buckets_M[:, None]])
    return every_MX & meant_X


def _sums(picked_MX: Tensor, *values_X: Tensor) -> Tensor:
    """For each row of M the sum of each of `values_X` where it is picked, then how many are."""
    values_CX = torch.stack([*values_X, torch.ones_like(values_X[0])])
    return torch.where(picked_MX[:, None], values_CX, 0.0).sum(-1)


def mean(values: Tensor) -> Tensor:
    """Total and count."""
    values = values.detach().float()
    return torch.stack([values.sum(), values.new_tensor(values.numel())])


@torch.no_grad()
def _mismatch(batch: MicroBatch, out: Outputs, max_age: int) -> dict[str, Tensor]:
    columns = batch.columns
    prox_T = columns.get("prox", out.logprobs_T).float()
    diff_T = (columns["mu"] - prox_T).abs()
    sampled_T, ages_T = columns["sampled"].bool(), columns["ages"]
    on_policy_T = sampled_T & (ages_T == 0)
    found = {}
    if "cached" in columns:
        cached_T = columns["cached"]
        met_MT = _by_age(on_policy_T & (cached_T > 0), cached_T, max_age)
        gaps = zip(_suffixes(max_age), _sums(met_MT, diff_T), strict=True)
        found = {f"kv_gap{s}": gap for s, gap in gaps if s not in ("", "/age_0")}
        on_policy_T &= cached_T == 0
    compared_MT = torch.stack([sampled_T, on_policy_T])
    names = ("logprob_diff", "logprob_diff_on_policy")
    largest_M = torch.where(compared_MT, diff_T, -math.inf).amax(-1)
    for name, sums, largest in zip(names, _sums(compared_MT, diff_T), largest_M, strict=True):
        found |= {name: sums, f"{name}_max": largest}
    return found | _drift(batch, prox_T, max_age)


def _drift(batch: MicroBatch, prox_T: Tensor, max_age: int) -> dict[str, Tensor]:
    """How far the policies of trained tokens are apart, by their age."""
    mu_T, ages_T = batch.columns["mu"], batch.columns["ages"]
    trained_T = batch.columns["mask"].bool()
    kl_T, gap_T = kl_estimate(mu_T, prox_T, "k3"), log_ratio(prox_T, mu_T)
    trained_MT = _by_age(trained_T, ages_T, max_age)
    num_sequences = len(batch.cu_seqlens) - 1
    sequences_T = sequences_of(batch, torch.arange(len(mu_T), device=mu_T.device))
    gap_N = gap_T.new_zeros(num_sequences + 1)  # the last is of what no sequence has
    gap_N = gap_N.index_add(0, sequences_T, torch.where(trained_T, gap_T, 0.0))[:-1]
    oldest_N = ages_T.new_full((num_sequences + 1,), -1)
    trained_ages_T = torch.where(trained_T, ages_T, -1)
    oldest_N = oldest_N.scatter_reduce(0, sequences_T, trained_ages_T, "amax")[:-1]
    sequences_MN = _by_age(oldest_N >= 0, oldest_N, max_age)
    by_name = {
        "mismatch_kl": _sums(trained_MT, kl_T),
        "log_ratio_m2": _sums(trained_MT, gap_T.square()),
        "ess": _sums(trained_MT, *_moments(gap_T)),
        "ess_sequence": _sums(sequences_MN, *_moments(gap_N)),
    }
    suffixes = _suffixes(max_age)
    return {
        f"{name}{suffix}": sums
        for name, sums_M in by_name.items()
        for suffix, sums in zip(suffixes, sums_M, strict=True)
    }


def sequences_of(batch: MicroBatch, places_K: Tensor) -> Tensor:
    """Which sequence of a micro-batch each of these places lies in."""
    ends = batch.cu_seqlens[1:].to(places_K)
    return torch.searchsorted(ends, places_K, right=True)


def _moments(log_ratio_X: Tensor) -> tuple[Tensor, Tensor]:
    """The ratio and its square."""
    ratio_X = log_ratio_X.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ratio_X, ratio_X.square()
