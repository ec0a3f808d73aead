"""The logits of a micro-batch, for a loss that reads more than the log-probability of each label.

Shape suffixes: T = packed tokens, V = a rank's share of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    #: `(logits_TV, labels_T, temperature)` -> log-probabilities [T] and entropies [T] of the
    #: distribution over the whole vocabulary, the same on every rank that shares it.
    Score = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]

__all__ = ["Logits"]


class Logits(NamedTuple):
    """What a model says of each next token. logits_TV: float32 [T, V], not divided by the
    temperature; of this rank's share of the vocabulary where ranks share it, its padding included.
    score: what scores labels by these logits, or by others of their shape."""

    logits_TV: Tensor
    score: Score

    @classmethod
    def of_one_rank(cls, logits_TV: Tensor) -> Logits:
        """Of a rank that has the whole vocabulary."""
        return cls(logits_TV, _scored)


def _scored(logits_TV: Tensor, labels_T: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs_TV = (logits_TV / temperature).log_softmax(-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, labels_T[:, None])[:, 0], entropy_T
