"""`get_log_probs_and_entropy` and `get_responses`: what a loss of slime's makes of logits.

Under tensor parallelism logits are a rank's share of the vocabulary. Who calls the loss says how
shares are scored together (`scoring`); outside of a loss nothing does.

Shape suffixes: T = tokens of a micro-batch, V = a rank's share of the vocabulary, R = response
tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from agentrl.errors import HookError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.algorithms.scored_logits import Score

__all__ = ["get_log_probs_and_entropy", "get_responses"]

#: Arguments of slime's that change nothing here: entropy has a gradient, asked for or not.
_UNREAD = frozenset({"non_loss_data", "entropy_requires_grad"})
_SCORE: ContextVar[Score] = ContextVar("score")


@contextmanager
def scoring(score: Score) -> Iterator[None]:
    """Have logits scored by `score` in this block."""
    token = _SCORE.set(score)
    try:
        yield
    finally:
        _SCORE.reset(token)


def get_responses(
    logits: Tensor,
    *,
    args: Any,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    apply_temperature: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each sample the logits [R, V] of its response, divided by `--rollout-temperature`, and
    its tokens [R]. `logits`: [1, T, V]."""
    spans = _spans(total_lengths, response_lengths)
    for tokens, span, num in zip(unconcat_tokens, spans, response_lengths, strict=True):
        of_sample = logits[0, span]
        if apply_temperature and args.rollout_temperature != 1.0:
            of_sample = of_sample / args.rollout_temperature
        yield of_sample, tokens[len(tokens) - num :]


def get_log_probs_and_entropy(
    logits: Tensor,
    *,
    args: Any,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    **unread: Any,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """An empty tensor, and for each sample `log_probs` [R] of its response at
    `--rollout-temperature`, and `entropy` [R] in nats if asked for; the same on every rank that
    shares the vocabulary, with exact gradients. `logits`: [1, T, V], those that the loss was given,
    or made of them. Raises HookError outside of a loss."""
    if odd := [name for name, value in unread.items() if name not in _UNREAD and value]:
        raise HookError(f"get_log_probs_and_entropy knows no {', '.join(odd)} here; leave it out")
    score = _SCORE.get(None)
    if score is None:
        raise HookError(
            "get_log_probs_and_entropy was called outside of a loss, where it is not known how "
            "ranks share the vocabulary; call it in the function of --custom-loss-function-path"
        )
    labels_T = unconcat_tokens[0].new_zeros(logits.shape[1])
    for tokens, end in zip(unconcat_tokens, accumulate(total_lengths), strict=True):
        labels_T[end - len(tokens) : end - 1] = tokens[1:]
    found = score(logits[0], labels_T, args.rollout_temperature)
    names = ("log_probs", "entropy") if with_entropy else ("log_probs",)
    spans = _spans(total_lengths, response_lengths)
    by_sample = {
        name: [value_T[span] for span in spans] for name, value_T in zip(names, found, strict=False)
    }
    return logits.new_empty(0), by_sample


def _spans(total_lengths: Sequence[int], response_lengths: Sequence[int]) -> list[slice]:
    """The places from which the tokens of each response are predicted."""
    ends = accumulate(total_lengths)
    return [slice(end - num - 1, end - 1) for end, num in zip(ends, response_lengths, strict=True)]
