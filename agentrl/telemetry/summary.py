"""`RunSummary`: a run in a dozen numbers, kept true in `summary.json` while the run goes on.

The file is replaced atomically, so a reader sees the old or the new one, never half.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.clock import Clock
from agentrl.disk import read_json, replace_file

__all__ = ["EvalScore", "RunSummary", "SummaryBuilder", "read_summary", "write_summary"]


class EvalScore(msgspec.Struct, frozen=True):
    """One evaluation: mean reward over `n` episodes; the versions that sampled their tokens.

    None where no episode ended well."""

    step: int
    version_min: int | None
    version_max: int | None
    score: float | None
    n: int


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json`. None: there was nothing to measure."""

    run_id: str
    status: str
    error: str | None
    steps: int
    wall_s: float
    eval: dict[str, list[EvalScore]]
    fates: dict[str, int]
    max_trained_age: int | None
    learner_idle_share: float | None
    push_ms_p50: float | None


class SummaryBuilder:
    """Takes in what happens; `build` says what it amounts to. `wall_s` counts from here."""

    def __init__(self, run_id: str, clock: Clock) -> None:
        self._run_id = run_id
        self._clock = clock
        self._start = clock.now()
        self._steps = 0
        self._wait_s = self._iterations_s = 0.0
        self._max_age: int | None = None
        self._push_ms: list[float] = []
        self._fates: dict[str, int] = {}
        self._eval: dict[str, list[EvalScore]] = {}

    def continue_from(self, before: RunSummary) -> None:
        """Take over the scores and counts of the run that is continued. Shares and medians are of
        the new program alone."""
        self._start -= before.wall_s
        self._steps = before.steps
        self._max_age = before.max_trained_age
        self._fates = dict(before.fates)
        self._eval = {name: list(scores) for name, scores in before.eval.items()}

    def step(self, number: int, metrics: Mapping[str, float]) -> None:
        """Iteration `number` is done. A repetition after a recovery does not count twice."""
        self._steps = max(self._steps, number)
        self._wait_s += metrics.get("perf/lease_wait_s", 0.0)
        self._iterations_s += metrics.get("perf/iteration_s", 0.0)
        age = metrics.get("train/age_max_trained")
        if age is not None:
            self._max_age = max(int(age), self._max_age or 0)

    def published(self, metrics: Mapping[str, float]) -> None:
        """Weights were pushed."""
        if "perf/push_s" in metrics:
            self._push_ms.append(metrics["perf/push_s"] * 1000)

    def fates(self, counts: Mapping[str, int]) -> None:
        """The groups of the run so far, by fate."""
        self._fates = dict(counts)

    def evaluation(self, step: int, data: Mapping[str, Any]) -> EvalScore:
        """An evaluation ended after iteration `step`; `data` is the buffer's event."""
        score = EvalScore(
            step, data["version_min"], data["version_max"], data.get("score"), data["n"]
        )
        self._eval.setdefault(data["name"], []).append(score)
        return score

    def build(self, status: str, error: str | None = None) -> RunSummary:
        """The summary of what has been taken in."""
        return RunSummary(
            run_id=self._run_id,
            status=status,
            error=error,
            steps=self._steps,
            wall_s=round(self._clock.now() - self._start, 3),
            eval={name: list(scores) for name, scores in self._eval.items()},
            fates=self._fates,
            max_trained_age=self._max_age,
            learner_idle_share=self._wait_s / self._iterations_s if self._iterations_s else None,
            push_ms_p50=statistics.median(self._push_ms) if self._push_ms else None,
        )


def write_summary(path: Path, summary: RunSummary, *, durable: bool) -> None:
    """Replace `path` by `summary` at once. `durable` waits for the disk, which an event loop that
    has other work should not."""
    data = msgspec.json.format(msgspec.json.encode(summary)) + b"\n"
    replace_file(path, data, durable=durable)


def read_summary(path: Path) -> RunSummary | None:
    """The summary at `path`; None when there is none that can be read."""
    return read_json(path, RunSummary)
