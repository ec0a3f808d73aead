"""What the curves of the staleness benchmark say: means, lowest points, gaps, and their intervals.
Differences are of runs with the same seed. An arm that stops to train is no correction: it is not
among those of which the best is told. Pure."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks import Row
from benchmarks.curves import Curve, Interval, bounded, interval

__all__ = ["BASE", "MASKED", "NAIVE", "Points", "gap", "rows_of", "trained_until"]

#: The arms that everything is compared with: fresh weights, and stale ones without any correction.
BASE, NAIVE = "on-policy", "naive"
#: The share of sampled tokens that are left out of the loss, of each iteration of a curve; None
#: where all groups earned alike, so that nothing was worth computing.
MASKED = "train/masked_token_share"
#: What makes a job one in which staleness bites: most effective samples, least gaps.
ESS_BAR, GAP_BAR = "< 0.7", "> 0"


class Points(msgspec.Struct, frozen=True):
    """Iterations whose weights are scored: all of them make a run's mean, those from `settled` on
    its lowest point, the last its end."""

    scored: tuple[int, ...]
    settled: int

    def mean(self, curve: Curve) -> float:
        return statistics.fmean(curve.scores[i] for i in self.scored)

    def lowest(self, curve: Curve) -> float:
        return min(curve.scores[i] for i in self.scored if i >= self.settled)

    def end(self, curve: Curve) -> float:
        return curve.scores[self.scored[-1]]


#: A number of each seed.
BySeed = Mapping[int, float]


def gap(base: BySeed, other: BySeed) -> Interval:
    """By how much `other` lies below `base`, over the seeds that both have. Raises ValueError if
    there is none."""
    seeds = sorted(base.keys() & other.keys())
    if not seeds:
        raise ValueError(f"no seed is in both {sorted(base)} and {sorted(other)}")
    return interval([base[seed] - other[seed] for seed in seeds])


def trained_until(curve: Curve) -> int | None:
    """The last iteration that trained a token, of a run that later left out all that it might have
    trained. None: it trained while its rewards told anything, or its shares are not recorded."""
    shares = enumerate(curve.metrics.get(MASKED, []), 1)
    told = [(i, share) for i, share in shares if share is not None]
    last = max((i for i, share in told if share < 1), default=0)
    return last if told and told[-1][0] > last else None


def rows_of(curves: Sequence[Curve], points: Points) -> list[Row]:
    """What is asked of the benchmark, lag by lag, then each arm, then each score."""
    base = [curve for curve in curves if curve.arm == BASE]
    rows: list[Row] = []
    for lag in sorted({curve.lag for curve in curves if curve.arm != BASE}):
        here = [curve for curve in curves if curve.lag == lag and curve.arm != BASE]
        rows += _verdict(lag, base, here, points)
    arms = dict.fromkeys((curve.arm, curve.lag) for curve in curves)
    for arm, lag in arms:
        rows += _arm([c for c in curves if (c.arm, c.lag) == (arm, lag)], base, points)
    for curve in curves:
        name = f"{_name(curve)}, seed {curve.seed}"
        rows += [Row(f"{name}: after {i}", s, "share") for i, s in sorted(curve.scores.items())]
    return rows


def _verdict(lag: int, base: Sequence[Curve], here: Sequence[Curve], points: Points) -> list[Row]:
    """Whether the job bites at this lag, and how near the best correction comes."""
    naive = [curve for curve in here if curve.arm == NAIVE]
    rows: list[Row] = []
    if found := [statistics.fmean(curve.ess) for curve in naive if curve.ess]:
        rows += bounded(f"ess_age{lag}", interval(found), "share", ESS_BAR)
    if found := [statistics.fmean(curve.m2) for curve in naive if curve.m2]:
        rows += bounded(f"m2_age{lag}", interval(found), "nats^2")
    suffix = "" if lag == 8 else f"_lag{lag}"
    for what, name in (("mean", "naive_gap"), ("lowest", "naive_gap_lowest")):
        if found_gap := _gap(base, naive, points, what):
            rows += bounded(f"{name}{suffix}", found_gap, "share", low=GAP_BAR)
    gaps = {
        arm: _gap(base, _of(here, arm), points, "mean")
        for arm in dict.fromkeys(curve.arm for curve in here if curve.arm != NAIVE)
        if not _stops(_of(here, arm))
    }
    means = {arm: found_gap for arm, found_gap in gaps.items() if found_gap}
    if means:
        best = min(means, key=lambda arm: means[arm].mean)
        rows += bounded(f"best_gap{suffix}", means[best], "share", best)
    return rows


def _arm(curves: Sequence[Curve], base: Sequence[Curve], points: Points) -> list[Row]:
    name = _name(curves[0])
    rows = [Row(f"{name}: seeds", len(curves), "seeds")]
    if _stops(curves):
        ends = [end for curve in curves if (end := trained_until(curve)) is not None]
        rows.append(Row(f"{name}: trains until", max(ends), "iterations"))
    for what in ("mean", "lowest", "end"):
        values = _by_seed(curves, points, what)
        rows += bounded(f"{name}: {what}", interval(list(values.values())), "share")
        below = _gap(base, curves, points, what) if curves[0].arm != BASE else None
        if below:
            rows += bounded(f"{name}: {what} below {BASE}", below, "share")
            rows.append(Row(f"{name}: seeds of {what} below {BASE}", below.n, "seeds"))
    return rows


def _stops(curves: Sequence[Curve]) -> bool:
    return any(trained_until(curve) is not None for curve in curves)


def _gap(
    base: Sequence[Curve], other: Sequence[Curve], points: Points, what: str
) -> Interval | None:
    """As `gap`; None where no seed is in both, as in a study that is measured in parts."""
    ours, theirs = _by_seed(base, points, what), _by_seed(other, points, what)
    return gap(ours, theirs) if ours.keys() & theirs.keys() else None


def _by_seed(curves: Sequence[Curve], points: Points, what: str) -> dict[int, float]:
    return {curve.seed: getattr(points, what)(curve) for curve in curves}


def _of(curves: Sequence[Curve], arm: str) -> list[Curve]:
    return [curve for curve in curves if curve.arm == arm]


def _name(curve: Curve) -> str:
    return curve.arm if curve.arm == BASE else f"{curve.arm}, lag {curve.lag}"
