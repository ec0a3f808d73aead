"""Arms at equal seconds of training: what each had reached when the shortest run ended, and before.

An arm that learns from better examples, or in other iterations, is compared by what it costs.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
from arms import Spread, spread_of
from runs import Run, Score

__all__ = ["AtEqualSeconds", "at_equal_seconds", "score_at"]

#: Parts of the shortest run after which arms are compared.
PARTS = (0.25, 0.5, 1.0)


class AtEqualSeconds(msgspec.Struct, frozen=True):
    """Exact match of each arm after so many seconds of training, over its seeds."""

    seconds: list[float]
    exact_match: dict[str, list[Spread]]


def at_equal_seconds(arms: Mapping[str, Sequence[Run]]) -> AtEqualSeconds:
    """All arms after parts of the seconds that the shortest of their runs took."""
    shortest = min(run.seconds for runs in arms.values() for run in runs)
    seconds = [part * shortest for part in PARTS]
    return AtEqualSeconds(
        seconds,
        {
            name: [spread_of([score_at(at, run.scores) for run in runs]) for at in seconds]
            for name, runs in arms.items()
        },
    )


def score_at(seconds: float, scores: Sequence[Score]) -> float:
    """Exact match after so many seconds, linear between scored iterations. Raises ValueError
    beyond the ends of the scores."""
    for left, right in pairwise(scores):
        if left.seconds <= seconds <= right.seconds:
            part = (seconds - left.seconds) / (right.seconds - left.seconds)
            return left.exact_match + part * (right.exact_match - left.exact_match)
    raise ValueError(f"{seconds} s lie outside of the scores' {[s.seconds for s in scores]}")
