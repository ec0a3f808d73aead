"""What layers of multi-token prediction are given and asked for, of a micro-batch, and their loss.

    loss = factor / D * sum over layers k and trained tokens of -log p_k(token) * weights

Layer k (from 1) of D sees at position t token t + k, and is asked for token t + k + 1: the label of
t + k. It is asked for no other than a trained one, by the mask and the weights of the policy's
loss, which stand under that label; and for none of another sequence. log p_k has no temperature: an
engine that speculates samples its draft by itself.

Shape suffixes: T = packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch

__all__ = ["MtpTargets", "mtp_loss", "mtp_targets"]


@dataclass(frozen=True, slots=True)
class MtpTargets:
    """Of one layer: int64 the tokens it sees and is asked for, bool where, and what each counts in
    the loss; all of shape [T], the last two on the device."""

    tokens_T: Tensor
    labels_T: Tensor
    asked_T: Tensor
    weights_T: Tensor


def mtp_targets(batch: MicroBatch, num_layers: int) -> list[MtpTargets]:
    """For each layer. Of a micro-batch of no loss, which has no columns, nothing is asked: ranks
    that share out experts go through the layers together."""
    none_T = torch.zeros(len(batch.tokens_T))
    mask_T = batch.columns.get("mask", none_T).bool()
    weights_T = batch.columns.get("weights", none_T)
    return [
        MtpTargets(
            tokens_T=_ahead(batch.tokens_T, batch.cu_seqlens, k),
            labels_T=_ahead(batch.labels_T, batch.cu_seqlens, k),
            asked_T=_ahead(mask_T, batch.cu_seqlens, k),
            weights_T=_ahead(weights_T, batch.cu_seqlens, k),
        )
        for k in range(1, num_layers + 1)
    ]


def mtp_loss(
    asked: Sequence[MtpTargets], logprobs: Sequence[Tensor], factor: float
) -> tuple[Tensor, Tensor]:
    """The loss of layers that are `asked` and give these [T], and (total, count) of the cross
    entropy alone."""
    parts, totals = [], []
    for each, logprobs_T in zip(asked, logprobs, strict=True):
        asked_K = each.asked_T.nonzero()[:, 0]
        nll_K = -logprobs_T[asked_K].float()
        parts.append((nll_K * each.weights_T[asked_K]).sum())
        totals.append(torch.stack([nll_K.detach().sum(), nll_K.new_full((), len(nll_K))]))
    return torch.stack(parts).sum() * (factor / len(parts)), torch.stack(totals).sum(0)


def _ahead(column_T: Tensor, cu_seqlens: Tensor, steps: int) -> Tensor:
    """What stands so many positions further in the same sequence; 0 where that has ended."""
    lengths, length = cu_seqlens.diff().long(), len(column_T)
    ends_T = cu_seqlens[1:].long().repeat_interleave(lengths)
    place_T = torch.arange(length) + steps
    is_within_T = (place_T < ends_T).to(column_T.device)
    found_T = column_T[place_T.clamp(max=length - 1).to(column_T.device)]
    return torch.where(is_within_T, found_T, torch.zeros_like(found_T))
