"""Curves of the study of staleness, made up."""

from benchmarks import staleness
from benchmarks.curves import Curve
from benchmarks.staleness import POINTS
from benchmarks.staleness_numbers import BASE


def curve(
    arm: str, seed: int, score: float, lowest: float | None = None, ess: float = 0.5
) -> Curve:
    """The same score all along, but for one of the settled points."""
    scores = dict.fromkeys((0, *POINTS.scored), score)
    scores[POINTS.settled] = score if lowest is None else lowest
    lag = 0 if arm == BASE else 8
    return Curve(
        arm=arm,
        lag=lag,
        seed=seed,
        scores=scores,
        ess=[] if arm == BASE else [ess - 0.1, ess + 0.1],
        job=staleness.job_digest(),
        made_with=staleness.made_with(arm),
    )
