"""A finished run, read from its directory: what it was, and how reward and score rose with time.

The clock of a run starts when its first task may be played: the learner waits for a rollout batch,
and the evaluation before training is over. It is wall time: pushes, waiting and evaluations beside
training count. What is known after iteration k stands at the moment that iteration ended, so the
evaluation after the last one costs no training time.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import DataError
from agentrl.telemetry.summary import RunSummary

__all__ = ["REWARDS", "Point", "Run", "Score", "read_run"]

#: Greedy rewards of a run's model in its directory: what `evaluate.py --rewards` writes.
REWARDS = "rewards.json"
#: Fields of a configuration in which repetitions of a run may differ.
REPETITION = frozenset({"preset", "run_dir", "run_id", "seed", "rollout_seed"})


class Point(msgspec.Struct, frozen=True):
    """A value after iteration `step`, `seconds` into training."""

    step: int
    seconds: float
    value: float


class Score(msgspec.Struct, frozen=True):
    """Exact match over n questions after iteration `step`."""

    step: int
    seconds: float
    exact_match: float
    n: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`scores` and `rewards` are in order of iterations, one each; `rewards` are means of batches.

    `final_rewards`: greedy rewards of the trained model by question set, where they were measured.
    """

    name: str
    config: dict[str, Any]
    summary: RunSummary
    scores: list[Score]
    rewards: list[Point]
    final_rewards: dict[str, list[float]]

    @property
    def seconds(self) -> float:
        """How long training took."""
        return self.rewards[-1].seconds


class _Line(msgspec.Struct):
    """A line of metrics.jsonl: of an iteration, or of an evaluation."""

    step: int
    time: float
    metrics: dict[str, float | None] | None = None
    eval: dict[str, dict[str, Any]] = {}


def read_run(path: Path, eval_set: str = "heldout") -> Run:
    """Read a run directory. Raises DataError when the run is not complete or lacks a file, a step,
    or an evaluation of `eval_set` at both ends."""
    try:
        summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=RunSummary)
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        text = (path / "metrics.jsonl").read_bytes()
        lines = [msgspec.json.decode(line, type=_Line) for line in text.splitlines()]
        final_rewards = _final_rewards(path / REWARDS)
    except (OSError, msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is no run directory: {error}") from error
    if summary.status != "complete":
        raise DataError(f"{path}: the run is {summary.status}, not complete; leave it out")
    seconds = _seconds(path, lines)
    scores = _scores(lines, seconds, eval_set)
    if not {0, summary.steps} <= {score.step for score in scores}:
        found = [score.step for score in scores]
        raise DataError(
            f"{path}: {eval_set} was evaluated after the iterations {found}; the ends, 0 and "
            f"{summary.steps}, must be among them"
        )
    return Run(
        name=path.name,
        config={key: value for key, value in config.items() if key not in REPETITION},
        summary=summary,
        scores=scores,
        rewards=_rewards(lines, seconds),
        final_rewards=final_rewards,
    )


def _final_rewards(path: Path) -> dict[str, list[float]]:
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, list[float]])


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


def _scores(lines: Sequence[_Line], seconds: dict[int, float], eval_set: str) -> list[Score]:
    """The last evaluation after each iteration."""
    scores: dict[int, Score] = {}
    for line in lines:
        figures = line.eval.get(eval_set, {})
        score, n = figures.get("score"), figures.get("n")
        if score is not None and n and line.step in seconds:
            scores[line.step] = Score(line.step, seconds[line.step], score, int(n))
    return [scores[step] for step in sorted(scores)]


def _rewards(lines: Sequence[_Line], seconds: dict[int, float]) -> list[Point]:
    """Mean reward of the batch of each iteration; a repeated iteration counts as it was last."""
    rewards: dict[int, Point] = {}
    for line in lines:
        reward = (line.metrics or {}).get("rollout/reward_mean")
        if reward is not None:
            rewards[line.step] = Point(line.step, seconds[line.step], reward)
    return [rewards[step] for step in sorted(rewards)]
