"""Intervals at 95 % for a share and for the difference of two shares.

All are for questions drawn at random; they say nothing of what another seed of training would give.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Gain", "paired_gain", "wilson"]

#: Half-width of the central 95 % of a normal distribution, in standard deviations.
Z = statistics.NormalDist().inv_cdf(0.975)


class Gain(msgspec.Struct, frozen=True):
    """A difference of two shares of the same questions, after minus before, with its interval."""

    value: float
    low: float
    high: float


def wilson(share: float, n: int) -> tuple[float, float]:
    """Score interval of a share of n (Wilson 1927, JASA 22:209, without continuity correction).

    Raises ValueError when n is not positive or the share not in 0..1.
    """
    if n < 1 or not 0 <= share <= 1:
        raise ValueError(f"a share of {share} of {n}: it must lie in 0..1, of at least 1")
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Normal approximation from the rewards of the same questions in the same order.

    Raises ValueError when there are none, or not as many after as before.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"{len(before)} rewards before and {len(after)} after make no pairs")
    changes = [b - a for a, b in zip(before, after, strict=True)]
    value = statistics.fmean(changes)
    half = Z * math.sqrt(statistics.pvariance(changes) / len(changes))
    return Gain(value, value - half, value + half)
