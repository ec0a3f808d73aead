"""`Recorder`: the buffer's events become metrics, a summary and a progress line.

The driver hands over every event it gets. A step event carries the learner's metrics and the
buffer's figures; the cost of the last push and the fates so far are added to it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from agentrl.clock import Clock
from agentrl.telemetry.metrics import REGISTRY, Registry
from agentrl.telemetry.progress import Progress, duration
from agentrl.telemetry.sinks import MetricsWriter, StepEvent
from agentrl.telemetry.summary import SummaryBuilder, write_summary

__all__ = ["Recorder"]


class _RunConfig(Protocol):
    """What a recorder reads of a run's configuration."""

    @property
    def num_rollout(self) -> int | None: ...


class Recorder:
    """`with Recorder(run_dir, config, clock) as recorder`. `run_dir` names the run."""

    def __init__(
        self,
        run_dir: Path,
        config: _RunConfig,
        clock: Clock,
        *,
        stream: TextIO | None = None,
        registry: Registry = REGISTRY,
    ) -> None:
        self._path = run_dir / "summary.json"
        self._clock = clock
        self._summary = SummaryBuilder(run_dir.name, clock)
        self._writer = MetricsWriter(run_dir, registry=registry)
        self._progress = Progress(stream or sys.stdout, config.num_rollout, clock)
        self._sampled: tuple[float, int] | None = None
        self._latest: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._writer.__enter__()
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.__exit__(exc_type, exc, traceback)
        self._writer.__exit__(exc_type, exc, traceback)

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take in an event of the buffer; kinds that carry no numbers are ignored."""
        match kind:
            case "step":
                self._step(data)
            case "published":
                self._summary.published(data["metrics"])
                self._latest |= data["metrics"]
            case "store" if data.get("full"):
                self.note("the store is full (--buffer-disk-limit): minting waits")
            case "fates":
                self._summary.fates(data["counts"])
                self._latest |= {f"buffer/fates/{k}": n for k, n in data["counts"].items()}

    def evaluation(self, step: int, data: Mapping[str, Any]) -> None:
        """An evaluation ended after iteration `step`; `data` is its event."""
        score = self._summary.evaluation(step, data)
        name = data["name"]
        numbers = {
            key: value
            for key, value in data.items()
            if key not in ("name", "id") and value is not None
        }
        self._writer.evaluation(step, name, numbers)
        said = "no score" if score.score is None else f"{score.score:.3f}"
        self._progress.note(
            f"evaluation {name}: {said} over {score.n} episodes, "
            f"versions {score.version_min}..{score.version_max}"
        )

    def note(self, text: str) -> None:
        """Tell the person who watches."""
        self._progress.note(text)

    def epitaph(self, status: str) -> str:
        """The run in one line: `complete: 30 iterations in 1m34s, heldout 0.345 -> 0.728`."""
        summary = self._summary.build(status)
        words = [f"{status}: {summary.steps} iterations in {duration(summary.wall_s)}"]
        for name, scores in summary.eval.items():
            values = [f"{score.score:.3f}" for score in scores if score.score is not None]
            words.append(
                f"{name} {' -> '.join(dict.fromkeys((values[0], values[-1])))}" if values else ""
            )
        return ", ".join(word for word in words if word)

    def finish(self, status: str, error: str | None = None) -> None:
        """The run has ended: `complete`, `interrupted` or `failed`."""
        write_summary(self._path, self._summary.build(status, error), durable=True)

    def _step(self, data: Mapping[str, Any]) -> None:
        event = self._step_event(data)
        self._writer.step(event)
        self._summary.step(event["step"], event["metrics"])
        self._progress.step(event)
        write_summary(self._path, self._summary.build("running"), durable=False)

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
        return {"step": data["number"], "metrics": metrics, "histograms": histograms}

    def _throughput(self, buffer: Mapping[str, Any]) -> dict[str, float]:
        """What engines sampled since the last step; a buffer that restarted counts from 0 again."""
        before, self._sampled = self._sampled, (self._clock.now(), buffer["sampled_tokens"])
        if before is None:
            return {}
        seconds, tokens = self._sampled[0] - before[0], self._sampled[1] - before[1]
        if seconds <= 0 or tokens < 0:
            return {}
        return {"perf/engine_tokens_per_s": tokens / seconds}
