"""What the runs of the default job amount to, arm by arm: gains, times to a score, comparisons.

An arm is a set of runs that differ in their seeds alone; that is checked. Shares are 0..1, times
are seconds of training. Intervals are at 95 % and for questions drawn at random: they say nothing
of what another seed would give.
"""

import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary
from scripts.default_job.kept import CURVE
from scripts.default_job.runs import Run, read_run

__all__ = ["ABOUT", "BASE", "CONTROL", "MAIN", "TARGETS", "Arms", "Gain", "Spread", "differences"]
__all__ += ["equal_seconds", "gain", "read_arms", "seconds_to", "sooner"]

#: The arm that is the default job, another that is compared with it, and one that is no run of RL.
MAIN, BASE, CONTROL = "async", "sync", "more-sft"
#: What each arm is, in order.
ABOUT = {
    "async": "`train_async.py --async-buffer-size 4`: the default job",
    "sync": "`train.py`: generate, train, push, again",
    "no-search": "the default job without its tool",
    "tool-text": "a loss on all that follows the prompt, the tool's text too: a classic mistake",
    "age-8": "a push every 8th iteration, ages up to 8 trained, corrected by pi_prox / mu",
    "age-8-naive": "the same without the correction",
    "more-sft": "no RL: supervised learning on full demonstrations, 16 steps an iteration",
}
#: Exact match whose first time is told.
TARGETS = (0.4, 0.5, 0.6)
#: Half-width of the central 95 % of a normal distribution, in standard deviations.
Z = statistics.NormalDist().inv_cdf(0.975)

Arms = Mapping[str, Sequence[Run]]


class Spread(NamedTuple):
    """Mean over the seeds, and their lowest and highest."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.fmean(values), min(values), max(values))

    def text(self, scale: float, digits: int, unit: str = "") -> str:
        """Mean, and lowest to highest where they differ."""
        mean, low, high = (f"{scale * value:.{digits}f}" for value in self)
        return f"{mean}{unit}" if low == high else f"{mean}{unit} ({low} to {high})"


class Gain(NamedTuple):
    """A difference of two shares of the same questions, after minus before, with its interval."""

    value: float
    low: float
    high: float


def gain(run: Run) -> Gain:
    """The rise of exact match in a run, question by question (normal approximation)."""
    first, last = run.scores[0], run.scores[-1]
    changes = [b - a for a, b in zip(first.rewards, last.rewards, strict=True)]
    value = statistics.fmean(changes)
    half = Z * math.sqrt(statistics.pvariance(changes) / len(changes))
    return Gain(value, value - half, value + half)


def seconds_to(target: float, run: Run) -> float | None:
    """Seconds until exact match is `target` for the first time, linear between scored iterations;
    None if it never is."""
    if run.scores[0].exact_match >= target:
        return run.scores[0].seconds
    for before, score in pairwise(run.scores):
        if score.exact_match >= target:
            part = (target - before.exact_match) / (score.exact_match - before.exact_match)
            return before.seconds + part * (score.seconds - before.seconds)
    return None


def sooner(target: float, arm: Sequence[Run], base: Sequence[Run]) -> Spread | None:
    """How many times sooner `arm` reaches a score: the ratio of the means, and the least and
    greatest of any two seeds; None if a run of either never reached it, or had it at the start."""
    mine, other = ([seconds_to(target, run) for run in runs] for runs in (arm, base))
    if not all(mine) or not all(other):
        return None
    one, two = (Spread.of([s for s in seconds if s]) for seconds in (mine, other))
    return Spread(two.mean / one.mean, two.low / one.high, two.high / one.low)


def equal_seconds(arms: Arms) -> tuple[float, dict[str, Spread]]:
    """The seconds that the shortest of all runs took, and exact match of each arm then, linear
    between scored iterations."""
    seconds = min(run.seconds for runs in arms.values() for run in runs)
    return seconds, {
        name: Spread.of([_match_at(seconds, run) for run in runs]) for name, runs in arms.items()
    }


def _match_at(seconds: float, run: Run) -> float:
    times, matches = zip(*((score.seconds, score.exact_match) for score in run.scores), strict=True)
    return float(np.interp(seconds, times, matches))


def differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Fields in which configurations differ, with all their values; None where one is not set."""
    fields = sorted({field for config in configs.values() for field in config})
    values = {field: [config.get(field) for config in configs.values()] for field in fields}
    return {field: found for field, found in values.items() if any(v != found[0] for v in found)}


def read_arms(experiment: Path) -> dict[str, list[Run]]:
    """Runs by arm, in order of their seeds; those that are not complete or not scored are named and
    left out. Raises DataError when no run of RL is left, and for runs that are no repetitions."""
    arms: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(experiment.glob("*-[0-9]*")):
        match = re.fullmatch(r"(.+)-\d+", path.name)
        if match is None or match[1] not in ABOUT:
            continue
        summary = read_summary(path / "summary.json")
        is_complete = summary is not None and summary.status == "complete"
        needs = [CURVE, "scores.json"] if match[1] in (MAIN, BASE, CONTROL) else [CURVE]
        if is_complete and all((path / name).exists() for name in needs):
            arms[match[1]].append(read_run(path))
        else:
            print(f"{path.name} is not complete and scored: left out", file=sys.stderr)
    if not arms.keys() - {CONTROL}:
        raise DataError(f"{experiment} has no run of RL that is complete and scored")
    for name, runs in arms.items():
        if found := differences({run.name: run.config for run in runs}):
            fields = "; ".join(f"{field}: {values}" for field, values in found.items())
            raise DataError(f"the runs of {name} are no repetitions of each other: {fields}")
    return {arm: arms[arm] for arm in ABOUT if arm in arms}
