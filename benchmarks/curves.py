"""Learning curves: the scores of a finished run by iteration, kept as one line of a file.

An interval holds the mean at 95 %, of one number for each seed, by Student's t: seeds are few. It
is of the choice of seeds; each score is of the same questions.
"""

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import DataError
from benchmarks import ROOT, Row, commit, machine

__all__ = [
    "Curve",
    "Interval",
    "append",
    "bounded",
    "finished",
    "interval",
    "present",
    "read",
    "scores_of",
]

#: Student's t at 97.5 % by degrees of freedom, from 1.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `scores`: greedy exact match (0..1) by the number of iterations that the
    scored weights held. `metrics`: others, by name, a number for each iteration, None where it has
    none.
    `made_with`: what it was made with beside the job, each part by its digest."""

    arm: str
    lag: int = 0
    seed: int
    scores: dict[int, float]
    ess: list[float] = []
    m2: list[float] = []
    rewards: list[float] = []
    metrics: Mapping[str, Sequence[float | None]] = {}
    job: str = ""
    made_with: dict[str, str] = {}
    commit: str = ""
    machine: str = ""
    began: str = ""
    wall_s: float = 0.0


class Interval(msgspec.Struct, frozen=True):
    """A mean over `n` seeds; of one seed alone `low` and `high` are unbounded."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of one number for each seed. Raises ValueError for more seeds than there are values
    of t for."""
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    if n - 1 > len(_T):
        raise ValueError(f"{n} seeds: _T has Student's t for {len(_T) + 1} at most")
    half = _T[n - 2] * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bounded(
    name: str, found: Interval, unit: str, against: str | None = None, low: str | None = None
) -> list[Row]:
    """A mean and, of two seeds or more, its bounds."""
    rows = [Row(name, round(found.mean, 4), unit, against)]
    if found.n > 1:
        rows.append(Row(f"{name}_low", round(found.low, 4), unit, low))
        rows.append(Row(f"{name}_high", round(found.high, 4), unit))
    return rows


def read(path: Path, job: str) -> list[Curve]:
    """Finished runs of this job, in the order of the file; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    curves = [msgspec.json.decode(line, type=Curve) for line in lines]
    return [curve for curve in curves if curve.job == job]


def append(path: Path, curve: Curve) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(curve) + b"\n")


def finished(run: Path, words: Sequence[str], job: str, curve_of: Callable[[str], Curve]) -> Curve:
    """Run a program whose run directory is `run` to its end, and read its `metrics.jsonl`. Raises
    DataError with what it said last."""
    began, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    measured = commit()
    said = run.with_suffix(".log")
    with said.open("w") as log:
        code = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=log, stderr=log).returncode
    if code:
        last = said.read_text()[-3000:]
        raise DataError(f"{run.name} ended with {code}; it said, in {said}:\n{last}")
    return msgspec.structs.replace(
        curve_of((run / "metrics.jsonl").read_text()),
        job=job,
        commit=measured,
        machine=machine(),
        began=began,
        wall_s=round(time.monotonic() - start, 1),
    )


def scores_of(lines: Iterable[Mapping[str, Any]], due: Sequence[int], run: str) -> dict[int, float]:
    """Scores by the iterations whose weights were scored. An evaluation that came late is of
    weights with one iteration more, and stands for those that it was due for. Raises DataError
    where an evaluation is of several versions, or a score is missing."""
    scores: dict[int, float] = {}
    for line in lines:
        for found in line.get("eval", {}).values():
            version = found["version_max"]
            if version != found["version_min"] or found["failed"]:
                raise DataError(f"{run}: no score of one version: {found}")
            scores[version] = found["score"]
    found_for = {each: scores.get(each, scores.get(each + 1)) for each in due}
    if missing := [each for each, score in found_for.items() if score is None]:
        raise DataError(f"{run}: no score after {missing}, only {sorted(scores)}")
    return {each: score for each, score in found_for.items() if score is not None}


def present(steps: Sequence[Mapping[str, float | None]], name: str) -> list[float]:
    """A metric of the iterations that have it: where nothing was trained it has no value."""
    return [round(value, 4) for step in steps if (value := step.get(name)) is not None]
