"""Log-probability of a label and entropy of the policy from vocabulary-parallel logits.

Each tensor-parallel rank holds a contiguous share of the vocabulary. Both results have exact
gradients; the loss is replicated over the tensor-parallel ranks, so the backward pass needs no
collective. Work goes in blocks of rows: beside the logits and their gradient only one block of
float32 exists at a time, whatever T and V are. The temperature acts on that block: bfloat16 logits
that are divided as they are lose 0.01 to 0.1 nats.

T = packed tokens, V = this rank's share of the vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["logprobs_and_entropy"]

#: Elements of a block: 4 MiB of float32, which stays in a core's cache.
_BLOCK_ELEMENTS = 1 << 20


def logprobs_and_entropy(
    logits_TV: Tensor, labels_T: Tensor, group: dist.ProcessGroup, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Float32 [T] log softmax of the labels and [T] entropy in nats, equal on all ranks of `group`.

    With z the logits, p = softmax(z / temperature), H = -sum p log p:
    d log p_y / dz = (1[y] - p) / temperature and d H / dz = -p (log p + H) / temperature.
    """
    shared = group if group.size() > 1 else None
    scores: tuple[Tensor, Tensor] = _LogprobEntropy.apply(  # type: ignore[no-untyped-call]
        logits_TV, labels_T, shared, temperature
    )
    return scores


def _blocks(num_rows: int, num_columns: int) -> Iterator[slice]:
    rows = max(1, _BLOCK_ELEMENTS // max(1, num_columns))
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def _all_reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType, group: Any) -> Tensor:
    if group is not None:
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


def _scaled(logits_TV: Tensor, temperature: float) -> Tensor:
    """Float32 logits of the distribution that is meant; may be `logits_TV` itself."""
    scaled_TV = logits_TV.float()
    return scaled_TV if temperature == 1.0 else scaled_TV / temperature


class _LogprobEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_TV: Tensor,
        labels_T: Tensor,
        group: dist.ProcessGroup | None,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        num_rows, num_columns = logits_TV.shape
        local_T = labels_T - (group.rank() * num_columns if group is not None else 0)
        mine_T = (local_T >= 0) & (local_T < num_columns)
        local_T = torch.where(mine_T, local_T, 0)
        max_T = _all_reduce(_scaled(logits_TV.amax(-1), temperature), dist.ReduceOp.MAX, group)
        sums_3T = logits_TV.new_empty((3, num_rows), dtype=torch.float32)
        for rows in _blocks(num_rows, num_columns):
            shifted = _scaled(logits_TV[rows], temperature) - max_T[rows, None]
            label = shifted.gather(-1, local_T[rows, None])[:, 0]
            sums_3T[0, rows] = torch.where(mine_T[rows], label, 0.0)
            exp = shifted.exp()
            sums_3T[1, rows] = exp.sum(-1)
            sums_3T[2, rows] = exp.mul_(shifted).sum(-1)
        label_T, exp_T, moment_T = _all_reduce(sums_3T, dist.ReduceOp.SUM, group).unbind(0)
        log_exp_T = exp_T.log()
        entropy_T = log_exp_T - moment_T / exp_T
        ctx.save_for_backward(logits_TV, max_T + log_exp_T, entropy_T, mine_T, local_T)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return label_T - log_exp_T, entropy_T

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_T: Tensor | None, grad_entropy_T: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        if grad_logprobs_T is None and grad_entropy_T is None:
            return None, None, None, None
        logits_TV, log_normalizer_T, entropy_T, mine_T, local_T = ctx.saved_tensors
        grad_TV = torch.empty_like(logits_TV)
        for rows in _blocks(*logits_TV.shape):
            log_p = _scaled(logits_TV[rows], ctx.temperature) - log_normalizer_T[rows, None]
            block = log_p.exp()
            if grad_entropy_T is None:
                assert grad_logprobs_T is not None
                block.mul_(-grad_logprobs_T[rows, None])
            else:
                weight = log_p.add_(entropy_T[rows, None]).mul_(grad_entropy_T[rows, None])
                if grad_logprobs_T is not None:
                    weight.add_(grad_logprobs_T[rows, None])
                block.mul_(weight.neg_())
            if grad_logprobs_T is not None:
                at_label = torch.where(mine_T[rows], grad_logprobs_T[rows], 0.0)
                block.scatter_add_(-1, local_T[rows, None], at_label[:, None])
            grad_TV[rows] = block if ctx.temperature == 1.0 else block.div_(ctx.temperature)
        return grad_TV, None, None, None
