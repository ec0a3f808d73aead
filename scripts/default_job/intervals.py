"""Intervals at 95 % for a share and for the difference of two shares.

All are for questions drawn at random; they say nothing of what another seed of training would give.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Gain", "paired_gain", "unpaired_gain", "wilson"]

#: Half-width of the central 95 % of a normal distribution, in standard deviations.
Z = statistics.NormalDist().inv_cdf(0.975)


class Gain(msgspec.Struct, frozen=True):
    """A difference of two shares, after minus before, with its interval.

    `is_paired`: computed question by question, which makes the interval narrower.
    """

    value: float
    low: float
    high: float
    is_paired: bool


def wilson(share: float, n: int) -> tuple[float, float]:
    """Score interval of a share of n (Wilson 1927, JASA 22:209, without continuity correction).

    Raises ValueError when n is not positive or the share not in 0..1.
    """
    _require(share, n)
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def unpaired_gain(before: float, num_before: int, after: float, num_after: int) -> Gain:
    """Normal approximation from two shares alone, taken as independent.

    On the same questions that errs on the wide side. Raises ValueError as `wilson` does.
    """
    _require(before, num_before)
    _require(after, num_after)
    variance = before * (1 - before) / num_before + after * (1 - after) / num_after
    return _gain(after - before, variance, is_paired=False)


def paired_gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Normal approximation from the rewards of the same questions in the same order.

    Raises ValueError when there are none, or not as many after as before.
    """
    if not before or len(before) != len(after):
        raise ValueError(f"{len(before)} rewards before and {len(after)} after make no pairs")
    changes = [b - a for a, b in zip(before, after, strict=True)]
    variance = statistics.pvariance(changes) / len(changes)
    return _gain(statistics.fmean(changes), variance, is_paired=True)


def _gain(value: float, variance: float, *, is_paired: bool) -> Gain:
    half = Z * math.sqrt(variance)
    return Gain(value, value - half, value + half, is_paired)


def _require(share: float, n: int) -> None:
    if n < 1 or not 0 <= share <= 1:
        raise ValueError(f"a share of {share} of {n}: it must lie in 0..1, of at least 1")
