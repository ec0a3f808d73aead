"""The two passes over micro-batches: forward only, and forward with backward.

Both go through megatron-core's schedules, so pipelines work. A micro-batch is laid out for the
model here: on the device, padded where parallelism needs equal shares, cut for context parallelism;
what the loss sees is again exactly the loop's T tokens. Padding is never seen by a real token: it
lies behind a sequence (causal attention) or is a sequence of its own.

Logits are made for the labels that the loss will read (column `scored`) alone: in RL a small
part, and the vocabulary is most of a small model's work and of a large one's memory.

T = packed tokens of the loop's micro-batch, P = with padding, L = of them on this rank, R = scored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import unwrap_model
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.learner.measures import Measures, measured
from agentrl.learner.megatron.logprob import logprobs_and_entropy
from agentrl.learner.megatron.parallel import gather_context
from agentrl.learner.megatron.zigzag import gathered_order, local_positions

__all__ = ["Layout", "backward_pass", "forward_pass"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How this rank's model wants its tokens: a context-parallel size and rank, and the number
    that local tokens must be a multiple of (tensor-parallel size under sequence parallelism).

    `temperature` divides the logits: the engine reports log-probabilities of the distribution that
    it sampled from, and so must the learner."""

    device: torch.device
    context_size: int
    context_rank: int
    multiple: int
    temperature: float


@dataclass(frozen=True, slots=True)
class _Input:
    """A micro-batch as the model takes it. `order_T` finds the loop's tokens in what all
    context-parallel ranks return, one after the other; None when they are already the same.
    `rows_R`: positions whose label is scored; None: all."""

    source: MicroBatch
    tokens_1L: Tensor
    labels_L: Tensor
    positions_1L: Tensor
    rows_R: Tensor | None
    packed: PackedSeqParams
    order_T: Tensor | None


def backward_pass(
    model: Any, micro_batches: Sequence[MicroBatch], loss_fn: LossFn, layout: Layout
) -> list[tuple[float, Measures]]:
    """Accumulate the gradients of all losses and reduce them over ranks. Returns loss and measures
    of each micro-batch on the last pipeline stage, nothing elsewhere. A rank without micro-batches
    takes part with one token of no loss."""

    def finish(batch: _Input, logits: Tensor, **_: Any) -> tuple[Tensor, Tensor, Any]:
        logprobs_T, entropy_T = _score(batch, logits, layout.temperature)
        if not micro_batches:
            return (logprobs_T * 0.0).sum(), torch.zeros((), dtype=torch.int), {}
        value, metrics = loss_fn(batch.source, Outputs(logprobs_T, entropy_T))
        # The count of tokens is for megatron-core's own average, which is not taken here.
        return value, torch.zeros((), dtype=torch.int), (value.detach(), metrics)

    results = _run(model, micro_batches or [_no_tokens()], layout, finish, forward_only=False)
    if not micro_batches:
        return []
    return [(float(loss), measured(report)) for loss, report in results]


@torch.no_grad()
def forward_pass(model: Any, micro_batches: Sequence[MicroBatch], layout: Layout) -> list[Tensor]:
    """Log-probabilities of the labels, one float32 [T] on the host for each micro-batch, the same
    on every rank of the model-parallel group."""
    if not micro_batches:
        return []

    def score(batch: _Input, logits: Tensor, **_: Any) -> Tensor:
        return _score(batch, logits, layout.temperature)[0]

    found = _run(model, micro_batches, layout, score, forward_only=True)
    lengths = [len(batch.tokens_T) for batch in micro_batches]
    group = parallel_state.get_pipeline_model_parallel_group()
    whole = torch.cat(found) if found else torch.empty(sum(lengths), device=layout.device)
    if group.size() > 1:
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        torch.distributed.broadcast(whole, last, group=group)
    return list(torch.split(whole.cpu(), lengths))


def _run(
    model: Any,
    micro_batches: Sequence[MicroBatch],
    layout: Layout,
    finish: Callable[..., Any],
    *,
    forward_only: bool,
) -> list[Any]:
    def forward(inputs: Iterator[_Input], model: Any) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(inputs)
        with _only_rows(model, batch.rows_R):
            logits = model(
                batch.tokens_1L, batch.positions_1L, None, packed_seq_params=batch.packed
            )
        return logits, lambda output, **kwargs: finish(batch, output, **kwargs)

    results: list[Any] = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=(_lay_out(batch, layout) for batch in micro_batches),
        model=[model],
        num_microbatches=len(micro_batches),
        seq_length=1,  # shapes travel with the tensors (variable_seq_lengths)
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return results


@contextmanager
def _only_rows(model: Any, rows_R: Tensor | None) -> Iterator[None]:
    """Let the output layer see those rows of the hidden states alone."""
    layer = getattr(unwrap_model(model), "output_layer", None)
    if rows_R is None or layer is None:
        yield
        return

    def select(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden_L1H, *rest = args
        return (hidden_L1H[rows_R], *rest)

    hook = layer.register_forward_pre_hook(select)
    try:
        yield
    finally:
        hook.remove()


def _score(batch: _Input, logits_1RV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the T labels, 0 where they were not asked for."""
    group = parallel_state.get_tensor_model_parallel_group()
    rows_R = batch.rows_R
    labels_R = batch.labels_L if rows_R is None else batch.labels_L[rows_R]
    scores = logprobs_and_entropy(logits_1RV[0], labels_R, group, temperature)
    if rows_R is not None:
        length = len(batch.labels_L)
        scores = (_spread(scores[0], rows_R, length), _spread(scores[1], rows_R, length))
    if batch.order_T is None:
        return scores
    logprobs_T, entropy_T = (gather_context(score)[batch.order_T] for score in scores)
    return logprobs_T, entropy_T


def _spread(values_R: Tensor, rows_R: Tensor, length: int) -> Tensor:
    return values_R.new_zeros(length).index_copy(0, rows_R, values_R)


def _no_tokens() -> MicroBatch:
    zero = torch.zeros(1, dtype=torch.int64)
    ends = torch.tensor([0, 1], dtype=torch.int32)
    return MicroBatch(zero, zero, zero, ends, 1, {})


def _lay_out(batch: MicroBatch, layout: Layout) -> _Input:
    device = layout.device
    source = replace(
        batch, columns={name: column.to(device) for name, column in batch.columns.items()}
    )
    lengths = [int(n) for n in batch.cu_seqlens.diff().tolist()]
    padded, place_T = _pad(lengths, layout)
    order_T: Tensor | None = None
    local: Tensor | slice = slice(None)
    if layout.context_size > 1:
        local = local_positions(padded, layout.context_size, layout.context_rank)
        order_T = gathered_order(padded, layout.context_size)[place_T].to(device)
    elif padded != lengths:
        order_T = place_T.to(device)

    def fill(column_T: Tensor) -> Tensor:
        if padded == lengths:
            return column_T[local].to(device)
        column_P = column_T.new_zeros(sum(padded))
        column_P[place_T] = column_T
        return column_P[local].to(device)

    ends = torch.tensor([0, *padded]).cumsum(0).to(device, torch.int32)
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=max(padded),
        max_seqlen_kv=max(padded),
    )
    tokens_L, labels_L, positions_L = map(fill, (batch.tokens_T, batch.labels_T, batch.positions_T))
    rows_R = None
    # Under sequence parallelism the output layer gathers its rows from all ranks by itself.
    if "scored" in batch.columns and layout.multiple == 1:
        rows_R = fill(batch.columns["scored"]).nonzero()[:, 0]
    return _Input(source, tokens_L[None], labels_L, positions_L[None], rows_R, packed, order_T)


def _pad(lengths: list[int], layout: Layout) -> tuple[list[int], Tensor]:
    """Lengths that every rank can share equally, and where the T tokens lie among the P."""
    unit = 2 * layout.context_size if layout.context_size > 1 else 1
    padded = [length + -length % unit for length in lengths]
    starts = torch.tensor([0, *padded[:-1]]).cumsum(0)
    place_T = torch.cat([start + torch.arange(n) for start, n in zip(starts, lengths, strict=True)])
    whole = max(unit, layout.multiple * layout.context_size)
    while whole % unit:
        whole += layout.multiple * layout.context_size
    filler = -sum(padded) % whole
    return [*padded, filler] if filler else padded, place_T
