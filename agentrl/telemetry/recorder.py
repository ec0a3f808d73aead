"""`Recorder`: the buffer's events become metrics, a summary and a progress line.

The driver hands over every event it gets. A step event carries the learner's metrics and the
buffer's figures; the cost of the last push and the fates so far are added to it. Of episodes that
failed the person who watches hears twice: when the Env raises for the first time, and at the end.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

from agentrl.clock import Clock
from agentrl.telemetry.dropped import DroppedGroups, one_line
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.phases import Phases
from agentrl.telemetry.progress import Progress, duration
from agentrl.telemetry.registry import Registry
from agentrl.telemetry.sinks import MetricsWriter, Sink, StepEvent
from agentrl.telemetry.summary import EvalScore, SummaryBuilder, read_summary, write_summary

__all__ = ["Recorder"]

#: Iterations over which the engines' throughput is averaged: episodes end in bursts.
_WINDOW = 5
#: Characters of an Env's error that the console shows; the worker's log has all of it.
_ERROR_CHARS = 300
#: Iterations in a row of one and the same reward throughout after which that is remarked on.
_FLAT = 3


class _RunConfig(Protocol):
    """What a recorder reads of a run's configuration."""

    @property
    def num_rollout(self) -> int | None: ...

    @property
    def rollout_temperature(self) -> float: ...


class Recorder:
    """`with Recorder(run_dir, config, clock) as recorder`. `run_id`: the run's id; without it, the
    name of the folder, which may have been changed since the run began. `origin`: what the clock
    read when the program began; None: now. `openers` begin further sinks of metrics."""

    def __init__(
        self,
        run_dir: Path,
        config: _RunConfig,
        clock: Clock,
        *,
        run_id: str | None = None,
        origin: float | None = None,
        stream: TextIO | None = None,
        registry: Registry = REGISTRY,
        openers: Sequence[Callable[[], Sink]] = (),
    ) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._phases = Phases(
            run_dir / "phases.json", clock, clock.now() if origin is None else origin
        )
        self._summary = SummaryBuilder(run_id or run_dir.name, clock)
        if (before := read_summary(run_dir / "summary.json")) is not None:
            self._summary.continue_from(before)
        self._registry = registry
        self._sinks = ExitStack()
        self._writer = MetricsWriter(run_dir, registry=registry, openers=openers)
        how = _how(is_greedy=config.rollout_temperature == 0)
        self._progress = Progress(stream or sys.stdout, config.num_rollout, clock, how=how)
        self._how_scored: dict[str, str] = {}  # by set
        self._sampled: deque[tuple[float, int]] = deque(maxlen=_WINDOW + 1)
        self._failures: Mapping[str, Any] | None = None
        self._env_error_told = False
        self._scoring_error_told = False
        self._dropped = DroppedGroups()
        self._num_flat = 0
        self._log_error_told: set[tuple[str, bool]] = set()
        self._latest: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._sinks.enter_context(self._writer)
        self._sinks.enter_context(self._progress)
        return self

    def __exit__(self, *exc: object) -> None:
        self._sinks.close()

    def continue_from(self, fates: Mapping[str, int]) -> None:
        """The fates of a run that is continued, before it goes on."""
        self._dropped.begin(fates)

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take in an event of the buffer; kinds that carry no numbers are ignored."""
        match kind:
            case "step":
                self._step(data)
            case "published":
                self._summary.published(data["metrics"])
                self._latest |= data["metrics"]
            case "engines":
                self._latest["perf/engine_silence_s"] = data["silence_s"]
            case "store" if data.get("full"):
                self.note("the store is full (--buffer-disk-limit): minting waits")
            case "budget":
                self.note(
                    f"the run comes to its end: {data['reason']}; {data['open']} groups that have "
                    f"begun are finished, {data['cancelled']} are given up"
                )
            case "failures":
                self._failures = data
                self._tell_first_env_error(data)
            case "fates":
                self._summary.fates(data["counts"])
                self._latest |= {f"buffer/fates/{k}": n for k, n in data["counts"].items()}
                self._dropped.fates(data["counts"], data.get("reasons", {}))
            case "scoring_failed":
                self._tell_first_scoring_error(data)

    def evaluation(
        self, step: int, data: Mapping[str, Any], *, is_greedy: bool, is_shown: bool = True
    ) -> None:
        """An evaluation ended after iteration `step`; `data` is its event. One that the end of the
        run cut off has no score. `is_greedy`: how this set was played. Without `is_shown` trackers
        do not hear of it."""
        if data.get("cancelled"):
            total = data["n"] + data["failed"]
            said = f"{data['n']} of {total} episodes were done when the run was stopped"
            self.note(f"evaluation {data['name']}: {said}")
            return
        score = self._summary.evaluation(step, data)
        name = data["name"]
        numbers = {
            key: value
            for key, value in data.items()
            if key not in ("name", "id", "episodes", "error") and value is not None
        }
        self._writer.evaluation(step, name, numbers, is_shown=is_shown)
        how = self._how_scored[name] = _how(is_greedy=is_greedy)
        why = one_line(str(data.get("error") or ""), _ERROR_CHARS)
        self._progress.note(f"evaluation {name}: {_scored(score, how)}{why and f' ({why})'}")

    def logged(
        self, step: int, figures: Mapping[str, float], told: str, *, is_over: bool = False
    ) -> None:
        """What a log function made of the evaluation after iteration `step`, and what went wrong
        with it; `is_over`: it is not called again."""
        self._tell_log_error(told, is_over=is_over)
        if figures:
            self._writer.logged(step, figures)

    def phase(self, name: str) -> float:
        """A phase of the start was reached now; returns its seconds since the program began."""
        return self._phases.mark(name)

    def explain(self, metrics: Mapping[str, str]) -> None:
        """What the run's Env says of the metrics that it counts."""
        self._registry.explain(metrics)

    def note(self, text: str) -> None:
        """Tell the person who watches."""
        self._progress.note(text)

    def end(self, text: str) -> None:
        """Tell the person who watches the last thing there is to tell."""
        self._progress.end(text)

    def epitaph(self, status: str) -> str:
        """The run in one line: `complete: 30 iterations in 1m34s, heldout 0.345 -> 0.728
        greedy`."""
        summary = self._summary.build(status)
        words = [f"{status}: {summary.steps} iterations in {duration(summary.wall_s)}"]
        for name, scores in summary.eval.items():
            values = [f"{score.score:.3f}" for score in scores if score.score is not None]
            change = " -> ".join(dict.fromkeys((values[0], values[-1]))) if values else ""
            how = self._how_scored.get(name, "")  # none: scored only before the run was continued
            words.append(f"{name} {change} {how}".rstrip() if values else "")
        return ", ".join(word for word in words if word)

    def finish(self, status: str, error: str | None = None) -> None:
        """The run has ended: `complete`, `interrupted` by a signal, `crashed`, or `failed`: as it
        is, it would fail again."""
        write_summary(self._summary_path, self._summary.build(status, error), durable=True)
        self._writer.exit_code = int(status != "complete")
        if self._failures is not None:
            self._tell_failures(self._failures)

    def _step(self, data: Mapping[str, Any]) -> None:
        event = self._step_event(data)
        self._writer.step(event)
        self._summary.step(event["step"], event["metrics"])
        num_trained = round(event["metrics"].get("rollout/num_groups", 0))
        self._progress.step(event, self._dropped.stepped(num_trained))
        self._tell_flat(event["metrics"])
        write_summary(self._summary_path, self._summary.build("running"), durable=False)

    @property
    def _summary_path(self) -> Path:
        return self._run_dir / "summary.json"

    def _tell_first_env_error(self, data: Mapping[str, Any]) -> None:
        failure = data["first"].get("env_error")
        if failure is None or self._env_error_told:
            return
        self._env_error_told = True
        log = self._run_dir / "logs" / f"{failure['worker']}.log"
        then = "is played again on a fresh Env" if data["retried"] else "failed for good"
        self.note(
            f"note: an episode failed (env_error: {one_line(failure['error'], _ERROR_CHARS)}); it "
            f"{then}; see {log}"
        )

    def _tell_first_scoring_error(self, failure: Mapping[str, str]) -> None:
        if self._scoring_error_told:
            return
        self._scoring_error_told = True
        log = self._run_dir / "logs" / f"{failure['worker']}.log"
        self.note(
            f"note: a group was dropped, for its rewards or the filter failed (env_error: "
            f"{one_line(failure['error'], _ERROR_CHARS)}); see {log}"
        )

    def _tell_flat(self, metrics: Mapping[str, float]) -> None:
        """Once in a row of iterations from which nothing could be learnt."""
        is_flat = metrics.get("rollout/reward_std") == 0 == metrics.get("train/grad_norm")
        self._num_flat = self._num_flat + 1 if is_flat else 0
        if self._num_flat == _FLAT:
            self.note(
                f"note: in each of the last {_FLAT} iterations all episodes had the same reward "
                f"({metrics['rollout/reward_mean']:g} in this one), so nothing was learnt from "
                f"them; after the run `agentrl view {self._run_dir}` shows what was said and scored"
            )

    def _tell_failures(self, data: Mapping[str, Any]) -> None:
        attempts = ", ".join(f"{count} {outcome}" for outcome, count in data["counts"].items())
        again, lost, of = data["retried"], data["lost"], f"of {data['played']} episodes failed"
        told = f"{again} {of} and were played again" if again else f"{lost} {of} for good"
        told += f", {lost} failed for good" if again and lost else ""
        self.note(f"{told} ({attempts}); see {self._run_dir / 'logs'}")

    def _step_event(self, data: Mapping[str, Any]) -> StepEvent:
        metrics: dict[str, float] = dict(self._latest)
        histograms = {}
        for name, value in data["metrics"].items():
            if isinstance(value, list):  # counts of 0, 1, 2, ...
                histograms[name] = (list(range(len(value) + 1)), value)
            else:
                metrics[name] = value
        metrics |= {f"buffer/{name}": value for name, value in data["buffer"].items()}
        metrics |= self._throughput(data["buffer"])
        event: StepEvent = {
            "step": data["number"],
            "metrics": metrics,
            "histograms": histograms,
        }
        if (logged := data.get("logged")) is not None:
            self._tell_log_error(logged.get("told", ""), is_over=logged.get("call") == "over")
            event |= {"logged": logged.get("figures", {}), "alone": logged.get("alone", False)}
        return event

    def _tell_log_error(self, told: str, *, is_over: bool) -> None:
        """Once for each flag, and once more when its function is not called again."""
        key = (told.partition(" ")[0], is_over)
        if told and key not in self._log_error_told:
            self._log_error_told.add(key)
            then = " without it" if is_over else ", and calls it again"
            self.note(f"note: {one_line(told, _ERROR_CHARS)}; the run goes on{then}")

    def _throughput(self, buffer: Mapping[str, Any]) -> dict[str, float]:
        """What engines sampled in the last iterations; a buffer that restarted counts from 0 again,
        and so does the window."""
        now, tokens = self._clock.now(), buffer["sampled_tokens"]
        if self._sampled and tokens < self._sampled[-1][1]:
            self._sampled.clear()
        self._sampled.append((now, tokens))
        since, before = self._sampled[0]
        return (
            {"perf/engine_tokens_per_s": (tokens - before) / (now - since)} if now > since else {}
        )


def _how(*, is_greedy: bool) -> str:
    """How turns are chosen: a score of greedy turns and a reward of sampled ones differ."""
    return "greedy" if is_greedy else "sampled"


def _scored(score: EvalScore, how: str) -> str:
    """A score on the console; `how` its turns were chosen."""
    if score.score is None:
        return "no score, for none of its episodes was done"
    said = f"{score.score:.3f} {how} over {score.n} episodes"
    if score.version_min is None:  # nothing was sampled
        return said
    return f"{said}, versions {score.version_min}..{score.version_max}"
