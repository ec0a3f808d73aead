"""The two passes over micro-batches: forward only, and forward with backward.

Both go through megatron-core's schedules, so pipelines work, interleaved ones too: `model` is the
list of this rank's stages. A micro-batch is laid out for the model (`laid_out`); what the loss sees
is again exactly the loop's T tokens.

Logits are made for the labels that the loss will read (column `scored`) alone, in RL a small part,
and a block of them at a time (`logprob`): the vocabulary is most of a small model's work and of a
large one's memory. Only a loss that asks for logits has all of them (`Outputs.logits`).

T = packed tokens of the loop's micro-batch, L = tokens of this rank with padding, R = scored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat, tee
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor
from torch.nn import ModuleList

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.learner.measures import Measures, measured
from agentrl.learner.megatron.exact_layers import exact_logprobs
from agentrl.learner.megatron.head import weight_of_head
from agentrl.learner.megatron.laid_out import LaidOut, TokenLayout, lay_out, num_padded
from agentrl.learner.megatron.logprob import logprobs_and_entropy, scores_of_logits
from agentrl.learner.megatron.mtp import num_mtp_layers
from agentrl.learner.megatron.mtp_targets import mtp_loss
from agentrl.learner.megatron.parallel import gather_context
from agentrl.learner.megatron.value_head import has_value_head

__all__ = ["Around", "backward_pass", "forward_pass"]


#: Entered for each micro-batch, with its routes, while a stage computes it.
Around = Callable[[MicroBatch, Tensor | None], AbstractContextManager[None]]


def _plainly(_: MicroBatch, __: Tensor | None) -> AbstractContextManager[None]:
    return nullcontext()


def backward_pass(
    model: ModuleList,
    micro_batches: Sequence[MicroBatch],
    loss_fn: LossFn,
    layout: TokenLayout,
    around: Sequence[Around] | None = None,
    mtp_factor: float = 0.0,
) -> list[tuple[float, Measures]]:
    """Accumulate the gradients of all losses and reduce them over ranks. Returns loss and measures
    of each micro-batch on the last pipeline stage, nothing elsewhere. A rank without micro-batches
    takes part with one token of no loss, which has no columns. `mtp_factor`: of the loss of layers
    of multi-token prediction, where the model has some."""

    def finish(batch: LaidOut, hidden: Tensor, **_: Any) -> tuple[Tensor, Tensor, Any]:
        out = _outputs(model[-1], batch, hidden, layout)
        if not batch.source.columns:
            nothing = (_made(out) * 0.0).sum() + (hidden[1:] * 0.0).sum()
            return nothing, torch.zeros((), dtype=torch.int), {}
        value, metrics = loss_fn(batch.source, out)
        if batch.ahead:
            logprobs = _mtp_logprobs(model[-1], batch, hidden, layout)
            asked = [each.whole for each in batch.ahead]
            mtp_value, measure = mtp_loss(asked, logprobs, mtp_factor)
            value, metrics = value + mtp_value, {**metrics, "mtp_loss": measure}
        # The count of tokens is for megatron-core's own average, which is not taken here.
        return value, torch.zeros((), dtype=torch.int), (value.detach(), metrics)

    inputs = _in_step(micro_batches or [_no_tokens()], layout, len(model))
    results = _run(model, inputs, layout, finish, around, forward_only=False)
    return [(float(each[0]), measured(each[1])) for each in results if each]


def _in_step(
    micro_batches: Sequence[MicroBatch], layout: TokenLayout, stages_of_a_rank: int
) -> list[tuple[MicroBatch, int]]:
    """With tokens of no loss in the end, as many as are missing; and for each micro-batch the least
    length that it is padded to. Ranks that share experts go through them together, and through
    interleaved stages micro-batches go in whole groups, one for each rank of the pipeline."""
    number = _most([len(micro_batches)])[0]
    if stages_of_a_rank > 1:
        number += -number % parallel_state.get_pipeline_model_parallel_world_size()
    batches = [*micro_batches, *(_no_tokens() for _ in range(number - len(micro_batches)))]
    least = [0] * number
    if layout.equal_shares:
        least = _most([num_padded(batch, layout) for batch in batches])
    return list(zip(batches, least, strict=True))


def _most(numbers: Sequence[int]) -> list[int]:
    """Each number where it is greatest among the ranks that share experts."""
    group = parallel_state.get_expert_model_parallel_group()
    if not numbers or group.size() == 1:
        return list(numbers)
    most = torch.tensor(numbers)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=group)
    return [int(number) for number in most]


@torch.no_grad()
def forward_pass(
    model: ModuleList,
    micro_batches: Sequence[MicroBatch],
    layout: TokenLayout,
    around: Sequence[Around] | None = None,
) -> list[Tensor]:
    """Log-probabilities of the labels, or the values of a critic, one float32 [T] on the host for
    each micro-batch, the same on every rank of the model-parallel group."""
    inputs = _in_step(micro_batches, layout, len(model))
    if not inputs:
        return []

    def score(batch: LaidOut, hidden: Tensor, **_: Any) -> Tensor:
        return _made(_outputs(model[-1], batch, hidden, layout))

    found = _run(model, inputs, layout, score, around, forward_only=True)
    lengths = [len(batch.tokens_T) for batch, _ in inputs]
    group = parallel_state.get_pipeline_model_parallel_group()
    whole = torch.cat(found) if found else torch.empty(sum(lengths), device=layout.device)
    if group.size() > 1:
        last = parallel_state.get_pipeline_model_parallel_last_rank()
        torch.distributed.broadcast(whole, last, group=group)
    return list(torch.split(whole.cpu(), lengths))[: len(micro_batches)]


def _run(
    model: ModuleList,
    micro_batches: Sequence[tuple[MicroBatch, int]],
    layout: TokenLayout,
    finish: Callable[..., Any],
    around: Sequence[Around] | None,
    *,
    forward_only: bool,
) -> list[Any]:
    def forward(
        inputs: Iterator[tuple[LaidOut, Around]], stage: Any
    ) -> tuple[Tensor, Callable[..., Any]]:
        batch, around_stage = next(inputs)
        tokens_1L, positions_1L = batch.tokens_1L, batch.positions_1L
        with around_stage(batch.source, batch.routes_L):
            more = {"ahead": [each.tokens_1L for each in batch.ahead]} if batch.ahead else {}
            hidden = stage(tokens_1L, positions_1L, None, packed_seq_params=batch.packed, **more)
        return hidden, lambda output, **kwargs: finish(batch, output, **kwargs)

    around_stages = around or [_plainly] * len(model)
    layers = 0 if forward_only else num_mtp_layers(model[0])
    laid_out = tee(
        (lay_out(batch, layout, layers, least) for batch, least in micro_batches), len(model)
    )
    results: list[Any] = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=[
            zip(batches, repeat(around_stage))
            for batches, around_stage in zip(laid_out, around_stages, strict=True)
        ],
        model=[*model],
        num_microbatches=len(micro_batches),
        seq_length=1,  # shapes travel with the tensors (variable_seq_lengths)
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return results


def _made(out: Outputs) -> Tensor:
    """What a forward pass is for."""
    return out.logprobs_T if out.values_T is None else out.values_T


def _outputs(model: Any, batch: LaidOut, last_1LX: Tensor, layout: TokenLayout) -> Outputs:
    """From what the last stage of a pipeline gave: hidden states, or values."""
    if not has_value_head(model):
        scores = _score(model, batch, last_1LX, layout)
        is_whole = layout.context_size == 1
        makes = partial(_logits, model, batch, last_1LX, layout) if is_whole else None
        return Outputs(*scores, logits=makes)
    values_L = last_1LX[0, :, 0]
    if batch.order_T is None:
        return Outputs.of_critic(values_L)
    return Outputs.of_critic(gather_context(values_L)[batch.order_T])


def _score(
    model: Any, batch: LaidOut, hidden_1LH: Tensor, layout: TokenLayout
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the T labels, 0 where they were not asked for."""
    group = parallel_state.get_tensor_model_parallel_group()
    rows_R = batch.rows_R
    hidden, labels, temperature = hidden_1LH[0], batch.labels_L, batch.temperature_L
    if rows_R is not None:
        hidden, labels = hidden[rows_R], labels[rows_R]
        if isinstance(temperature, Tensor):
            temperature = temperature[rows_R]
    weight = weight_of_head(model)
    scores = logprobs_and_entropy(hidden, weight, labels, group, temperature, layout.vocab_size)
    if layout.is_exact:
        own = weight[: layout.vocab_size]
        exactly = exact_logprobs(scores[0], hidden, own, labels, temperature)
        scores = exactly, scores[1]
    logprobs_T, entropy_T = (_whole(score, rows_R, batch) for score in scores)
    return logprobs_T, entropy_T


def _logits(model: Any, batch: LaidOut, hidden_1LH: Tensor, layout: TokenLayout) -> Logits:
    """Of the loop's T tokens, behind which padding lies where no context is shared. A rank that
    has the whole vocabulary leaves its padding out; others leave it to `score`."""
    group = parallel_state.get_tensor_model_parallel_group()
    weight = weight_of_head(model)
    if group.size() == 1:
        weight = weight[: layout.vocab_size]
    logits_TV = (hidden_1LH[0, : len(batch.source.tokens_T)] @ weight.t()).float()

    def score(logits_TV: Tensor, labels_T: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return scores_of_logits(logits_TV, labels_T, group, temperature, layout.vocab_size)

    return Logits(logits_TV, score)


def _mtp_logprobs(
    model: Any, batch: LaidOut, hidden_XLH: Tensor, layout: TokenLayout
) -> list[Tensor]:
    """For each layer of multi-token prediction log-probabilities [T] of its labels, 0 where they
    were not asked for; the output weights get no gradient of it."""
    group = parallel_state.get_tensor_model_parallel_group()
    weight = weight_of_head(model).detach()
    found = []
    for each, hidden_LH in zip(batch.ahead, hidden_XLH[1:], strict=True):
        scores_R, _ = logprobs_and_entropy(
            hidden_LH[each.rows_R],
            weight,
            each.labels_L[each.rows_R],
            group,
            vocab_size=layout.vocab_size,
        )
        found.append(_whole(scores_R, each.rows_R, batch))
    return found


def _whole(score: Tensor, rows_R: Tensor | None, batch: LaidOut) -> Tensor:
    """[T], of those rows of this rank's tokens, or of all."""
    if rows_R is not None:
        score = _spread(score, rows_R, len(batch.labels_L))
    return score if batch.order_T is None else gather_context(score)[batch.order_T]


def _spread(values_R: Tensor, rows_R: Tensor, length: int) -> Tensor:
    return values_R.new_zeros(length).index_copy(0, rows_R, values_R)


def _no_tokens() -> MicroBatch:
    zero = torch.zeros(1, dtype=torch.int64)
    ends = torch.tensor([0, 1], dtype=torch.int32)
    return MicroBatch(zero, zero, zero, ends, 1, {})
