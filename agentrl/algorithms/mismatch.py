"""How far the sampling engine is from the learner on one micro-batch, measured beside every loss.

    logprob_diff    |engine - learner| log-probability of the tokens that were sampled, masked ones
                    too; those of age 0 apart (`_on_policy`), and the largest (`_max`)
    mismatch_kl     KL of the engine's from the learner's distribution, of trained tokens, by age

Both are of the learner at the start of the iteration: column `prox`, or the current policy where
that is it. A loss of the user's cannot leave them out, nor report others in their place.

Shape suffixes: T = packed tokens, K = trained tokens, S = sampled tokens (trained or not).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.corrections import kl_estimate
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.errors import DataError

__all__ = ["MAX_AGE_BUCKET", "by_age", "mean", "with_mismatch"]

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


def by_age(ages_K: Tensor, max_age: int) -> Iterator[tuple[str, Tensor]]:
    """What a metric's name ends with, and which tokens it is of, for each age."""
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
    for name, diff in (("logprob_diff", diff_S), ("logprob_diff_on_policy", diff_S[on_policy_S])):
        found[name] = mean(diff)
        if diff.numel():
            found[f"{name}_max"] = diff.max()
    trained_T = columns["mask"]
    kl_K = kl_estimate(columns["mu"][trained_T], prox_T[trained_T], "k3")
    found["mismatch_kl"] = mean(kl_K)
    for suffix, here_K in by_age(columns["ages"][trained_T], max_age):
        found[f"mismatch_kl{suffix}"] = mean(kl_K[here_K])
    return found
