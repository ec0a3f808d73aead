"""A finished run, read from its directory: what it was, and how reward and score rose with time.

The clock of a run starts when its first task may be played: the learner waits for a rollout batch,
and the evaluation before training is over. It is wall time: pushes, waiting and the writing of
models count. What is known after iteration k stands at the moment that iteration ended.

Scores are those of `snapshots.py`, of the models that the run kept. What the run itself evaluated
of its first and last model is a check of them, and nothing else.
"""

import statistics
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import DataError
from agentrl.telemetry.summary import RunSummary
from scripts.default_job.kept import read_curve

__all__ = ["Run", "Score", "read_run"]

#: Fields of a configuration in which repetitions of a run may differ.
REPETITION = frozenset({"preset", "run_dir", "run_id", "seed", "rollout_seed", "save_hf"})


class Score(msgspec.Struct, frozen=True):
    """Exact match after iteration `step`, and the rewards, question by question, behind it."""

    step: int
    seconds: float
    rewards: list[float]

    @property
    def exact_match(self) -> float:
        return statistics.fmean(self.rewards)

    @property
    def n(self) -> int:
        return len(self.rewards)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`scores` are in order of iterations. `rewards`: seconds and mean reward of the batch by
    iteration, none where nothing is rewarded. `seconds`: how long training took. `own`: exact match
    after an iteration, as the run itself evaluated it.
    """

    name: str
    config: dict[str, Any]
    summary: RunSummary
    seconds: float
    scores: list[Score]
    rewards: dict[int, tuple[float, float]]
    own: dict[int, float]


class _Line(msgspec.Struct):
    """A line of metrics.jsonl: of an iteration, or of an evaluation."""

    step: int
    time: float
    metrics: dict[str, float | None] | None = None
    eval: dict[str, dict[str, Any]] = {}


def read_run(path: Path, eval_set: str = "heldout") -> Run:
    """Read a run directory. Raises DataError when the run is not complete or lacks a file, a step,
    or a score on `eval_set` at both ends."""
    try:
        summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=RunSummary)
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        text = (path / "metrics.jsonl").read_bytes()
        lines = [msgspec.json.decode(line, type=_Line) for line in text.splitlines()]
    except (OSError, msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is no run directory: {error}") from error
    if summary.status != "complete":
        raise DataError(f"{path}: the run is {summary.status}, not complete; leave it out")
    seconds = _seconds(path, lines)
    return Run(
        name=path.name,
        config=_settings(config),
        summary=summary,
        seconds=max(seconds.values()),
        scores=_scores(path, seconds, eval_set, summary.steps),
        rewards=_rewards(lines, seconds),
        own=_own(lines, eval_set),
    )


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """What repetitions must share; of the file of demonstrations, which each seed writes for
    itself, the name."""
    found = {key: value for key, value in config.items() if key not in REPETITION}
    if "prompt_data" in found:
        found["prompt_data"] = Path(found["prompt_data"]).name
    return found


def _seconds(path: Path, lines: Sequence[_Line]) -> dict[int, float]:
    """Seconds into training at which each iteration ended; 0 for what came before the first."""
    ends = {line.step: line.time for line in lines if line.metrics is not None}
    if not ends:
        raise DataError(f"{path}: metrics.jsonl has no iteration")
    first = next(line for line in lines if line.metrics is not None)
    lasted = (first.metrics or {}).get("perf/iteration_s")
    if first.step != 1 or lasted is None:
        raise DataError(f"{path}: metrics.jsonl does not begin with iteration 1 and its duration")
    before = [line.time for line in lines if line.step == 0 and line.time < first.time]
    start = max([first.time - lasted, *before])
    return {0: 0.0} | {step: time - start for step, time in ends.items()}


def _scores(path: Path, seconds: dict[int, float], eval_set: str, last: int) -> list[Score]:
    """The run's curve, in order."""
    curve = read_curve(path)
    if curve is None or curve.questions != eval_set or not {0, last} <= curve.rewards.keys():
        found = [] if curve is None else [curve.questions, *sorted(curve.rewards)]
        raise DataError(
            f"{path}: scored was {found or 'nothing'}; wanted is {eval_set} after the iterations 0 "
            f"and {last} at least: run `python -m scripts.default_job.snapshots` on it"
        )
    if unknown := curve.rewards.keys() - seconds.keys():
        raise DataError(f"{path}: metrics.jsonl lacks the scored iterations {sorted(unknown)}")
    if len({len(rewards) for rewards in curve.rewards.values()}) != 1:
        raise DataError(f"{path}: its scores are not of the same questions; remove its curve.json")
    return [Score(step, seconds[step], curve.rewards[step]) for step in sorted(curve.rewards)]


def _own(lines: Sequence[_Line], eval_set: str) -> dict[int, float]:
    """The run's last evaluation of its own after each iteration."""
    found = {line.step: line.eval.get(eval_set, {}).get("score") for line in lines if line.eval}
    return {step: score for step, score in found.items() if score is not None}


def _rewards(lines: Sequence[_Line], seconds: dict[int, float]) -> dict[int, tuple[float, float]]:
    """Mean reward of the batch of each iteration; a repeated iteration counts as it was last."""
    rewards = {}
    for line in lines:
        reward = (line.metrics or {}).get("rollout/reward_mean")
        if reward is not None:
            rewards[line.step] = (seconds[line.step], reward)
    return dict(sorted(rewards.items()))
