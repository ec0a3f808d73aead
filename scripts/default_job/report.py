"""What the runs of the default job amount to: numbers, the tables of its page, and its picture.

An arm is a set of runs that differ in their seeds alone. A run is read from its directory:

    metrics.jsonl    when each iteration ended, and what its episodes were rewarded
    scores/N.json    rewards of the held-out questions, one by one, of the model after iteration N

The clock of a run starts when its first task may be played: the learner waits for a rollout batch,
and the evaluation before training is over. It is wall time: pushes, waiting and the writing of
models count. What is known after iteration k stands at the moment that iteration ended.

Shares are 0..1. Intervals are at 95 %, and for questions drawn at random: they say nothing of what
another seed would give.
"""

import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agentrl.errors import DataError
from agentrl.telemetry.summary import read_summary
from benchmarks import Row
from scripts.default_job.places import ROOT
from scripts.figures import Line, Panel, draw
from scripts.pages import filled
from scripts.pages import rows as table

__all__ = ["ABOUT", "BASE", "BEFORE", "MAIN", "Scored", "read_arms", "rows", "write_page"]

PAGES = ROOT / "docs" / "results"
#: The file of an experiment with what the model before training scores.
BEFORE = "before.json"
#: The arm that is the default job, and the one that it is compared with in time.
MAIN, BASE = "async", "sync"
#: What each arm is, in order.
ABOUT = {
    MAIN: "`train_async.py --async-buffer-size 4`: the default job",
    BASE: "`train.py`: generate, train, push, again",
    "age-8": "a push every 8th iteration, ages up to 8 trained, corrected by pi_prox / mu",
    "age-8-naive": "the same without the correction",
}
#: Exact match whose first time is told.
TARGETS = (0.4, 0.5, 0.6)
#: Half-width of the central 95 % of a normal distribution, in standard deviations.
Z = statistics.NormalDist().inv_cdf(0.975)
#: Iterations that a point of the training reward is a mean of.
WINDOW = 9


# ---- what is read -------------------------------------------------------------------------------


class Scored(msgspec.Struct, frozen=True):
    """Rewards of a model, question by question: greedy, and at temperature 1 if it played so."""

    greedy: list[float]
    sampled: list[float] = []


class Score(NamedTuple):
    """What the model after an iteration scored, seconds into training."""

    step: int
    seconds: float
    rewards: list[float]

    @property
    def exact_match(self) -> float:
        return statistics.fmean(self.rewards)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A complete run, that of the model before training first among its `scores`.

    `rewards`: seconds and mean reward of the batch, by iteration. `sampled_gain`: rise at
    temperature 1.
    """

    name: str
    steps: int
    seconds: float
    scores: list[Score]
    rewards: dict[int, tuple[float, float]]
    sampled_gain: float


Arms = Mapping[str, Sequence[Run]]


def read_arms(experiment: Path) -> dict[str, list[Run]]:
    """Runs by arm, in order of their seeds; those that are not complete or not scored are named and
    left out. Raises DataError when none is left."""
    arms: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(experiment.glob("*-[0-9]*")):
        match = re.fullmatch(r"(.+)-\d+", path.name)
        if match is None or match[1] not in ABOUT:
            continue
        summary = read_summary(path / "summary.json")
        is_complete = summary is not None and summary.status == "complete"
        if is_complete and summary and (path / "scores" / f"{summary.steps}.json").exists():
            arms[match[1]].append(_read_run(path, summary.steps, experiment / BEFORE))
        else:
            print(f"{path.name} is not complete and scored: left out", file=sys.stderr)
    if not arms:
        raise DataError(f"{experiment} has no run that is complete and scored")
    return {arm: arms[arm] for arm in ABOUT if arm in arms}


def _read_run(path: Path, steps: int, before: Path) -> Run:
    text = (path / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    seconds = _seconds(lines)
    files = {int(file.stem): file for file in (path / "scores").glob("*.json")}
    scored = {step: _read_scored(file) for step, file in sorted({0: before, **files}.items())}
    rewards = {
        line["step"]: (seconds[line["step"]], line["metrics"]["rollout/reward_mean"])
        for line in lines
        if line.get("metrics")
    }
    return Run(
        name=path.name,
        steps=steps,
        seconds=max(seconds.values()),
        scores=[Score(step, seconds[step], each.greedy) for step, each in scored.items()],
        rewards=rewards,
        sampled_gain=statistics.fmean(scored[steps].sampled) - statistics.fmean(scored[0].sampled),
    )


def _read_scored(path: Path) -> Scored:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scored)
    except msgspec.DecodeError as error:
        raise DataError(f"{path} cannot be read: {error}; remove it and score again") from error


def _seconds(lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds into training at which each iteration ended; 0 for what came before the first."""
    ends = {line["step"]: line["time"] for line in lines if line.get("metrics")}
    first = next(line for line in lines if line.get("metrics"))
    before = [line["time"] for line in lines if line["step"] == 0 and line["time"] < first["time"]]
    start = max([first["time"] - first["metrics"]["perf/iteration_s"], *before])
    return {0: 0.0} | {step: time - start for step, time in ends.items()}


# ---- numbers ------------------------------------------------------------------------------------


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


def rows(arms: Arms) -> list[Row]:
    """Every arm in exact match on held-out questions, then how two of them compare in time."""
    made = []
    for name, runs in arms.items():
        gains = [gain(run) for run in runs]
        end = statistics.fmean(run.scores[-1].exact_match for run in runs)
        sampled = statistics.fmean(run.sampled_gain for run in runs)
        made += [
            Row(f"seeds_{name}", len(runs), "seeds"),
            Row(f"end_{name}", 100 * end, "%"),
            Row(f"gain_{name}", 100 * statistics.fmean(g.value for g in gains), "points"),
            Row(f"gain_low_{name}", 100 * min(g.low for g in gains), "points"),
            Row(f"sampled_gain_{name}", 100 * sampled, "points"),
        ]
    if {MAIN, BASE} <= arms.keys():
        for target in TARGETS:
            if ratio := sooner(target, arms[MAIN], arms[BASE]):
                metric = f"{MAIN}_sooner_to_{100 * target:g}"
                for suffix, value in zip(("", "_low", "_high"), ratio, strict=True):
                    made.append(Row(metric + suffix, value, "times", BASE))
        seconds, matches = equal_seconds({name: arms[name] for name in (MAIN, BASE)})
        made.append(Row("equal_seconds", seconds, "s"))
        for name, match in matches.items():
            made.append(Row(f"at_equal_seconds_{name}", 100 * match.mean, "%"))
    return made


# ---- the page -----------------------------------------------------------------------------------


def write_page(arms: Arms, measured: str, output: Path = PAGES) -> None:
    """Write the sections of the page, and its picture; `measured`: where, and by which commit."""
    page = output / "default-job.md"
    text = page.read_text(encoding="utf-8")
    sections = {"arms": lambda: arms_section(arms, measured), "in time": lambda: in_time(arms)}
    page.write_text(filled(text, sections), encoding="utf-8")
    page.with_suffix(".svg").write_text(picture(arms), encoding="utf-8")


def arms_section(arms: Arms, measured: str) -> Iterator[str]:
    """What each arm is, and what it learns; over seeds: mean (lowest to highest)."""
    yield from (
        measured,
        "",
        *table(["arm", "what it is"], [[arm, ABOUT[arm]] for arm in arms]),
        "",
    )
    head = ["arm", "seeds", "start", "end", "gain, points", *map(_to, TARGETS), "s / iteration"]
    yield from table(head, [_arm(name, runs) for name, runs in arms.items()])


def _arm(name: str, runs: Sequence[Run]) -> list[str]:
    matches = (Spread.of([run.scores[at].exact_match for run in runs]) for at in (0, -1))
    return [
        name,
        str(len(runs)),
        *(match.text(100, 1, " %") for match in matches),
        Spread.of([gain(run).value for run in runs]).text(100, 1),
        *(_times([seconds_to(target, run) for run in runs]) for target in TARGETS),
        Spread.of([run.seconds / run.steps for run in runs]).text(1, 2),
    ]


def _to(target: float) -> str:
    return f"to {100 * target:g} %"


def _times(seconds: Sequence[float | None]) -> str:
    reached = [each for each in seconds if each is not None]
    if len(reached) < len(seconds):
        return f"{len(reached)} of {len(seconds)} seeds" if reached else "-"
    return Spread.of(reached).text(1, 0)


def in_time(arms: Arms) -> Iterator[str]:
    """How the two arms that are compared in time do; nothing where one is missing."""
    if not {MAIN, BASE} <= arms.keys():
        return
    ratios = [sooner(target, arms[MAIN], arms[BASE]) for target in TARGETS]
    cells = ["-" if ratio is None else ratio.text(1, 2) for ratio in ratios]
    yield from table(["times sooner", *map(_to, TARGETS)], [[f"{MAIN} than {BASE}", *cells]])
    seconds, matches = equal_seconds({name: arms[name] for name in (MAIN, BASE)})
    said = ", ".join(f"`{arm}` {match.text(100, 1, ' %')}" for arm, match in matches.items())
    yield from ("", f"After {seconds:.0f} s, when the shortest run had ended: {said}.")


def picture(arms: Arms) -> str:
    """Scores above, training rewards below, each at the mean of the seeds' seconds; as SVG."""
    num = max(len(score.rewards) for runs in arms.values() for run in runs for score in run.scores)
    score = f"Exact match on {num:,} held-out questions, greedy (%)"
    reward = f"Reward of training episodes, mean over {WINDOW} iterations (%)"

    def points(run: Run) -> dict[int, tuple[float, float]]:
        return {each.step: (each.seconds, each.exact_match) for each in run.scores}

    scores = [_line(name, map(points, runs)) for name, runs in arms.items()]
    rewards = [_line(name, map(smoothed, runs)) for name, runs in arms.items()]
    x_label = "seconds of training (wall time)"
    return draw(
        [Panel(score, scores, " %"), Panel(reward, rewards, height=0.6)],
        x_label=x_label,
        note="lines: mean over seeds; bands: lowest to highest seed",
        about=f"{score} and reward of training episodes against {x_label}: {', '.join(arms)}",
    )


def _line(name: str, curves: Iterator[dict[int, tuple[float, float]]]) -> Line:
    """Percent after each iteration that every seed has a point for."""
    found = list(curves)
    points = []
    for step in sorted(set.intersection(*map(set, found))):
        seconds, values = zip(*(curve[step] for curve in found), strict=True)
        points.append((statistics.fmean(seconds), [100 * value for value in values]))
    return Line(name, points)


def smoothed(run: Run) -> dict[int, tuple[float, float]]:
    """Means of rewards over `WINDOW` consecutive iterations, or all if there are fewer, each at the
    middle one's number and seconds."""
    points = [(step, *point) for step, point in run.rewards.items()]
    width = min(WINDOW, len(points))
    windows = (points[at : at + width] for at in range(len(points) - width + 1 if width else 0))
    return {
        near[width // 2][0]: (near[width // 2][1], statistics.fmean(value for _, _, value in near))
        for near in windows
    }
