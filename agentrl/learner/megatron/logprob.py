"""Log-probability of a label and entropy of the policy, from hidden states and the output weights.

Each tensor-parallel rank holds a contiguous share of the vocabulary. Both results have exact
gradients. All logits of a micro-batch never exist together: they are made a block of rows at a time
and, where there are several blocks, made again for the gradient. That costs a third of the output
layer's work; the logits of a large vocabulary cost more memory than the rest of a small model.
Float32 copies exist for a few rows at a time. The temperature acts on these: bfloat16 logits that
are divided as they are lose 0.01 to 0.1 nats.

T = packed tokens, H = hidden size, V = this rank's share of the vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.learner.megatron.gpu_kernels import add_product, can_compile, compiled_on_cuda

__all__ = ["BLOCK_ELEMENTS", "logprobs_and_entropy", "scores_of_logits"]

#: One number for all tokens, or one for each: float32 [T].
Temperature = float | Tensor

#: Logits that exist at a time: 256 MiB of float32, and on a GPU 512 MiB of bfloat16.
BLOCK_ELEMENTS = 1 << 26
_GPU_BLOCK_ELEMENTS = 1 << 28
#: Of these, in float32 at a time: on a CPU 4 MiB, which stays in a core's cache. A kernel that is
#: compiled for a GPU needs no such copy; where none is compiled, as in a rehearsal, 128 MiB.
_CACHED_ELEMENTS, _UNCOMPILED_ELEMENTS = 1 << 20, 1 << 25


def logprobs_and_entropy(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    labels_T: Tensor,
    group: dist.ProcessGroup,
    temperature: Temperature = 1.0,
    vocab_size: int | None = None,
    *,
    block_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Float32 [T] log softmax of the labels and [T] entropy in nats, equal on all ranks of `group`.
    Columns from `vocab_size` on, counted over all ranks, are padding and take no part.

    With z = hidden @ weight.T, p = softmax(z / temperature), H = -sum p log p:
    d log p_y / dz = (1[y] - p) / temperature and d H / dz = -p (log p + H) / temperature.
    The gradient of `hidden_TH` is this rank's part of a sum over `group`.
    """
    if block_elements is None:
        block_elements = _GPU_BLOCK_ELEMENTS if hidden_TH.is_cuda else BLOCK_ELEMENTS
    shared = group if group.size() > 1 else None
    first = group.rank() * len(weight_VH)
    weight_VH = _without_padding(weight_VH, 0, first, vocab_size)
    scores: tuple[Tensor, Tensor] = _Scores.apply(  # type: ignore[no-untyped-call]
        hidden_TH, weight_VH, labels_T - first, shared, temperature, block_elements
    )
    return scores


def scores_of_logits(
    logits_TV: Tensor,
    labels_T: Tensor,
    group: dist.ProcessGroup,
    temperature: Temperature = 1.0,
    vocab_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `logprobs_and_entropy`, of logits that exist: each rank of `group` has [T, V] of them,
    shares of one width, of which columns from `vocab_size` on take no part."""
    first = group.rank() * logits_TV.shape[-1]
    logits_TV = _without_padding(logits_TV, 1, first, vocab_size)
    shared = group if group.size() > 1 else None
    scores: tuple[Tensor, Tensor] = _OfLogits.apply(  # type: ignore[no-untyped-call]
        logits_TV, labels_T - first, shared, temperature
    )
    return scores


def _without_padding(share: Tensor, dim: int, first: int, vocab_size: int | None) -> Tensor:
    """What a rank has of the vocabulary along `dim`, from entry `first` on. Raises ValueError where
    that is padding alone, which `Architecture.refusals` names before the start."""
    if vocab_size is None or first + share.shape[dim] <= vocab_size:
        return share
    if first >= vocab_size:
        raise ValueError(f"entries from {first} on are padding: the vocabulary has {vocab_size}")
    return share.narrow(dim, 0, vocab_size - first)


def _blocks(num_rows: int, num_columns: int, elements: int) -> Iterator[slice]:
    rows = max(1, elements // max(1, num_columns))
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def _few_rows(logits_TV: Tensor) -> Iterator[slice]:
    elements = _UNCOMPILED_ELEMENTS if logits_TV.is_cuda else _CACHED_ELEMENTS
    if can_compile():
        elements = logits_TV.numel()
    return _blocks(len(logits_TV), logits_TV.shape[-1], elements)


def _scaled(logits_TV: Tensor, temperature: Temperature) -> Tensor:
    """Float32 logits of the distribution that is meant; may be `logits_TV` itself."""
    scaled_TV = logits_TV.float()
    return scaled_TV if _is_one(temperature) else scaled_TV / _by_row(temperature)


def _is_one(temperature: Temperature) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 1.0


def _by_row(temperature: Temperature) -> Temperature:
    return temperature[:, None] if isinstance(temperature, Tensor) else temperature


def _of_rows(temperature: Temperature, rows: slice) -> Temperature:
    return temperature[rows] if isinstance(temperature, Tensor) else temperature


def _moments(
    logits_TV: Tensor, labels_T: Tensor, mine_T: Tensor, max_T: Tensor, temperature: Temperature
) -> Tensor:
    """[3, T] of x = z / temperature - max: x of the label where it is this rank's, sum exp x, and
    sum x exp x."""
    sums_3T = max_T.new_empty((3, len(max_T)))
    for rows in _few_rows(logits_TV):
        of_rows = (logits_TV[rows], labels_T[rows], mine_T[rows], max_T[rows])
        sums_3T[:, rows] = _moments_at_once(*of_rows, _of_rows(temperature, rows))
    return sums_3T


@compiled_on_cuda
def _moments_at_once(
    logits_TV: Tensor, labels_T: Tensor, mine_T: Tensor, max_T: Tensor, temperature: Temperature
) -> Tensor:
    shifted = _scaled(logits_TV, temperature) - max_T[:, None]
    label = shifted.gather(-1, labels_T[:, None])[:, 0]
    exp = shifted.exp()
    return torch.stack([torch.where(mine_T, label, 0.0), exp.sum(-1), exp.mul_(shifted).sum(-1)])


def _joined(sums_3T: Tensor, max_T: Tensor, mine_T: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """The moments of all ranks, each of which took them at a maximum of its own."""
    if group is None:
        return sums_3T, max_T
    whole_T = max_T.clone()
    dist.all_reduce(whole_T, op=dist.ReduceOp.MAX, group=group)
    down_T = max_T - whole_T
    label_T, exp_T, moment_T = sums_3T.unbind(0)
    shrunk_T = exp_T * down_T.exp()
    moment_T = moment_T * down_T.exp() + shrunk_T * down_T
    sums_3T = torch.stack([torch.where(mine_T, label_T + down_T, 0.0), shrunk_T, moment_T])
    dist.all_reduce(sums_3T, op=dist.ReduceOp.SUM, group=group)
    return sums_3T, whole_T


def _whole(
    sums_3T: Tensor, max_T: Tensor, mine_T: Tensor, group: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and the log of the sum of exp z, over all ranks."""
    sums_3T, max_T = _joined(sums_3T, max_T, mine_T, group)
    label_T, exp_T, moment_T = sums_3T.unbind(0)
    log_exp_T = exp_T.log()
    return label_T - log_exp_T, log_exp_T - moment_T / exp_T, max_T + log_exp_T


class _OfLogits(torch.autograd.Function):
    """As `_Scores`, of logits that are there, and stay."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_TV: Tensor,
        local_T: Tensor,
        group: dist.ProcessGroup | None,
        temperature: Temperature,
    ) -> tuple[Tensor, Tensor]:
        mine_T = (local_T >= 0) & (local_T < logits_TV.shape[-1])
        local_T = torch.where(mine_T, local_T, 0)
        max_T = _scaled(logits_TV.amax(-1, keepdim=True), temperature)[:, 0]
        sums_3T = _moments(logits_TV, local_T, mine_T, max_T, temperature)
        logprobs_T, entropy_T, normalizer_T = _whole(sums_3T, max_T, mine_T, group)
        ctx.save_for_backward(logits_TV, normalizer_T, entropy_T, mine_T, local_T)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_T: Tensor | None, grad_entropy_T: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad_logprobs_T is None and grad_entropy_T is None:
            return (None,) * 4
        logits_TV, *of_rows = ctx.saved_tensors
        grad_TV = _to_gradient(
            logits_TV.clone(), ctx.temperature, *of_rows, grad_logprobs_T, grad_entropy_T
        )
        return grad_TV, *(None,) * 3


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        local_T: Tensor,
        group: dist.ProcessGroup | None,
        temperature: Temperature,
        block_elements: int,
    ) -> tuple[Tensor, Tensor]:
        num_rows, num_columns = len(hidden_TH), len(weight_VH)
        mine_T = (local_T >= 0) & (local_T < num_columns)
        local_T = torch.where(mine_T, local_T, 0)
        max_T = hidden_TH.new_empty(num_rows, dtype=torch.float32)
        sums_3T = max_T.new_empty((3, num_rows))
        blocks = list(_blocks(num_rows, num_columns, block_elements))
        logits_TV = None
        for rows in blocks:
            logits_TV = hidden_TH[rows] @ weight_VH.t()
            heat = _of_rows(temperature, rows)
            max_T[rows] = _scaled(logits_TV.amax(-1, keepdim=True), heat)[:, 0]
            of_block = (local_T[rows], mine_T[rows], max_T[rows])
            sums_3T[:, rows] = _moments(logits_TV, *of_block, heat)
        logprobs_T, entropy_T, normalizer_T = _whole(sums_3T, max_T, mine_T, group)
        kept = logits_TV if len(blocks) == 1 else None
        ctx.save_for_backward(hidden_TH, weight_VH, kept, normalizer_T, entropy_T, mine_T, local_T)
        ctx.temperature, ctx.blocks = temperature, blocks
        ctx.set_materialize_grads(False)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_T: Tensor | None, grad_entropy_T: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad_logprobs_T is None and grad_entropy_T is None:
            return (None,) * 6
        is_frozen = not ctx.needs_input_grad[1]
        hidden_TH, weight_VH, kept, *of_rows = ctx.saved_tensors
        grad_TH = torch.empty_like(hidden_TH)
        grad_VH: Tensor | None = None
        for rows in ctx.blocks:
            logits_TV = hidden_TH[rows] @ weight_VH.t() if kept is None else kept
            upstream = [None if g is None else g[rows] for g in (grad_logprobs_T, grad_entropy_T)]
            of_block = [each[rows] for each in of_rows]
            heat = _of_rows(ctx.temperature, rows)
            grad_TV = _to_gradient(logits_TV, heat, *of_block, *upstream)
            grad_TH[rows] = grad_TV @ weight_VH
            if is_frozen:
                continue
            if grad_VH is None:
                grad_VH = grad_TV.t() @ hidden_TH[rows]
            else:  # a sum in bfloat16 would lose what each block adds
                grad_VH = grad_VH.float()
                add_product(grad_VH, grad_TV.t(), hidden_TH[rows])
        return grad_TH, None if grad_VH is None else grad_VH.to(weight_VH.dtype), *(None,) * 4


def _to_gradient(logits_TV: Tensor, temperature: Temperature, *of_rows: Any) -> Tensor:
    """The gradient of logits, which are this function's own and needed no more: it takes their
    place, but for a compiled kernel. `of_rows`: as `_gradient_at_once` has them."""
    if can_compile():
        return _gradient_at_once(logits_TV, temperature, *of_rows)
    for rows in _few_rows(logits_TV):
        of_block: list[Any] = [None if each is None else each[rows] for each in of_rows]
        heat = _of_rows(temperature, rows)
        logits_TV[rows] = _gradient_at_once(logits_TV[rows], heat, *of_block)
    return logits_TV


@compiled_on_cuda
def _gradient_at_once(
    logits_TV: Tensor,
    temperature: Temperature,
    normalizer_T: Tensor,
    entropy_T: Tensor,
    mine_T: Tensor,
    local_T: Tensor,
    grad_logprobs_T: Tensor | None,
    grad_entropy_T: Tensor | None,
) -> Tensor:
    log_p = _scaled(logits_TV, temperature) - normalizer_T[:, None]
    block = log_p.exp()
    if grad_entropy_T is None:
        assert grad_logprobs_T is not None
        block.mul_(-grad_logprobs_T[:, None])
    else:
        weight = log_p.add_(entropy_T[:, None]).mul_(grad_entropy_T[:, None])
        if grad_logprobs_T is not None:
            weight.add_(grad_logprobs_T[:, None])
        block.mul_(weight.neg_())
    if grad_logprobs_T is not None:
        at_label = torch.where(mine_T, grad_logprobs_T, 0.0)
        if logits_TV.is_cuda:  # a comparison is a part of the one kernel, a scatter is not
            columns = torch.arange(logits_TV.shape[-1], device=logits_TV.device)
            block.add_(torch.where(columns == local_T[:, None], at_label[:, None], 0.0))
        else:
            block.scatter_add_(-1, local_T[:, None], at_label[:, None])
    if not _is_one(temperature):
        block.div_(_by_row(temperature))
    return block.to(logits_TV.dtype)
