"""What groups of runs amount to: gains, times to a score, and how two arms compare.

An arm is a set of runs that differ in their seeds alone; that is checked. Shares are 0..1, times
are seconds of training.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from intervals import Gain, paired_gain, wilson
from runs import Point, Run, Score

from agentrl.errors import DataError

__all__ = ["Arm", "Comparison", "Measured", "RunResult", "Spread", "Times"]
__all__ += ["compare", "differences", "measure_arm", "seconds_to", "smooth", "spread_of"]


class Spread(msgspec.Struct, frozen=True):
    """Mean over the seeds, and their lowest and highest."""

    mean: float
    low: float
    high: float


class Measured(msgspec.Struct, frozen=True):
    """Exact match with its 95 % interval (Wilson)."""

    exact_match: float
    low: float
    high: float
    n: int


class Times(msgspec.Struct, frozen=True):
    """When a score was reached: by how many seeds, and, if by all, after how many seconds."""

    reached: int
    runs: int
    seconds: Spread | None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run in numbers. A score that was never reached has None for its seconds.

    `own_start`, `own_end`: exact match as the run itself evaluated it, None where it did not.
    """

    run: str
    iterations: int
    seconds: float
    start: Measured
    end: Measured
    gain: Gain
    own_start: float | None
    own_end: float | None
    seconds_to: dict[str, float | None]
    learner_idle_share: float | None
    max_trained_age: int | None


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that differ in their seeds alone."""

    name: str
    start: Spread
    end: Spread
    gain: Spread
    seconds: Spread
    seconds_per_iteration: Spread
    seconds_to: dict[str, Times]
    runs: list[RunResult]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How many times sooner `arm` reaches a score than `base`: the ratio of their mean seconds.

    `low` and `high` pair the slowest seed of one with the fastest of the other. No entry for a
    score that a run of either never reached, or had at the start."""

    arm: str
    base: str
    times_sooner: dict[str, Spread]


def seconds_to(target: float, scores: Sequence[Score]) -> float | None:
    """Seconds of training until exact match is `target` for the first time, linear between scored
    iterations; None if it never is."""
    before: Score | None = None
    for score in scores:
        if score.exact_match >= target:
            if before is None:
                return score.seconds
            part = (target - before.exact_match) / (score.exact_match - before.exact_match)
            return before.seconds + part * (score.seconds - before.seconds)
        before = score
    return None


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Means over `window` consecutive points, or all if there are fewer, each standing in the
    middle of its points."""
    width = max(1, min(window, len(points)))
    smoothed = []
    for at in range(len(points) - width + 1):
        near, middle = points[at : at + width], points[at + width // 2]
        mean = statistics.fmean(point.value for point in near)
        smoothed.append(Point(middle.step, middle.seconds, mean))
    return smoothed


def measure_arm(name: str, runs: Sequence[Run], targets: Sequence[float]) -> Arm:
    """The numbers of an arm. Raises DataError when the runs differ in more than their seeds."""
    if found := differences({run.name: run.config for run in runs}):
        fields = "; ".join(f"{field}: {values}" for field, values in found.items())
        raise DataError(f"the runs of {name} are no repetitions of each other: {fields}")
    results = [_measure(run, targets) for run in runs]
    return Arm(
        name=name,
        start=spread_of([result.start.exact_match for result in results]),
        end=spread_of([result.end.exact_match for result in results]),
        gain=spread_of([result.gain.value for result in results]),
        seconds=spread_of([result.seconds for result in results]),
        seconds_per_iteration=spread_of([result.seconds / result.iterations for result in results]),
        seconds_to={key: _times(results, key) for key in map(str, targets)},
        runs=results,
    )


def compare(arm: Arm, base: Arm) -> Comparison:
    """How much sooner `arm` reaches each score than `base`."""
    ratios = {}
    for target, times in arm.seconds_to.items():
        mine, other = times.seconds, base.seconds_to[target].seconds
        if mine is not None and other is not None and mine.low > 0 and other.low > 0:
            ratios[target] = Spread(
                other.mean / mine.mean, other.low / mine.high, other.high / mine.low
            )
    return Comparison(arm=arm.name, base=base.name, times_sooner=ratios)


def differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Fields in which configurations differ, with the value of each; None where it is not set."""
    fields = sorted({field for config in configs.values() for field in config})
    values = {
        field: {name: config.get(field) for name, config in configs.items()} for field in fields
    }
    return {
        field: found
        for field, found in values.items()
        if any(value != next(iter(found.values())) for value in found.values())
    }


def _measure(run: Run, targets: Sequence[float]) -> RunResult:
    start, end = run.scores[0], run.scores[-1]
    return RunResult(
        run=run.name,
        iterations=run.summary.steps,
        seconds=run.seconds,
        start=_measured(start),
        end=_measured(end),
        gain=paired_gain(start.rewards, end.rewards),
        own_start=run.own.get(start.step),
        own_end=run.own.get(end.step),
        seconds_to={str(target): seconds_to(target, run.scores) for target in targets},
        learner_idle_share=run.summary.learner_idle_share,
        max_trained_age=run.summary.max_trained_age,
    )


def _measured(score: Score) -> Measured:
    return Measured(score.exact_match, *wilson(score.exact_match, score.n), score.n)


def _times(results: Sequence[RunResult], key: str) -> Times:
    seconds = [s for result in results if (s := result.seconds_to[key]) is not None]
    spread = spread_of(seconds) if len(seconds) == len(results) else None
    return Times(len(seconds), len(results), spread)


def spread_of(values: Sequence[float]) -> Spread:
    """Mean, lowest and highest."""
    return Spread(statistics.fmean(values), min(values), max(values))
