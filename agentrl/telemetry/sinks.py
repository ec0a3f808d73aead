"""`MetricsWriter`: where numbers go: `metrics.jsonl` and TensorBoard event files, always both, and
the services that a run is tracked by.

A line of `metrics.jsonl` has the wall time at which its numbers came and is one of

    {"step", "metrics": {NAME: value}, "histograms", "time"}    an iteration
    {"step", "eval": {SET: {KEY: value}}, "time"}               an evaluation after iteration `step`

where `eval/SET/KEY` is the metric's name in TensorBoard. Figures of a log function of the user's
stand beside, as "logged": {NAME: value}, and may go elsewhere `alone`: in place of rollout/* of the
iteration, or of the evaluation. Not-a-number and infinity become null.
Both are flushed at each call, so what a killed run had reported is there.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, Protocol, Self, TypedDict

import msgspec

from agentrl.disk import make_folder, narrow
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.registry import Registry

__all__ = ["Histogram", "MetricsWriter", "Sink", "StepEvent"]

#: Bucket edges (one more than buckets, rising) and the count in each bucket.
Histogram = tuple[Sequence[float], Sequence[float]]


class StepEvent(TypedDict):
    """The numbers of one iteration."""

    step: int
    metrics: Mapping[str, float]
    histograms: NotRequired[Mapping[str, Histogram]]
    logged: NotRequired[Mapping[str, float]]
    alone: NotRequired[bool]


class Sink(Protocol):
    """A place that the numbers of an iteration, or of an evaluation after it, go to."""

    def write(
        self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Histogram]
    ) -> None:
        """Take them; the names of an evaluation begin with `eval/`."""
        ...

    def close(self, exit_code: int = 0) -> None:
        """The run has ended; 0: complete."""
        ...


class MetricsWriter:
    """`with MetricsWriter(run_dir) as writer`; appends to what a resumed run has already written.

    Files: `run_dir/metrics.jsonl`, `run_dir/tensorboard/events.out.tfevents.*`. `exit_code` is what
    sinks are told at the end.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        registry: Registry = REGISTRY,
        openers: Sequence[Callable[[], Sink]] = (),
    ) -> None:
        self.exit_code = 0
        self._openers = openers
        self._run_dir = Path(run_dir)
        self._registry = registry

    def __enter__(self) -> Self:
        from agentrl.telemetry.event_file import EventFile  # tensorboard takes a second to load

        make_folder(self._run_dir)
        self._lines = (self._run_dir / "metrics.jsonl").open("ab")
        narrow(self._run_dir / "metrics.jsonl")
        self._events = EventFile(self._run_dir / "tensorboard", self._help)
        self._services: list[Sink] = []
        try:
            for open_sink in self._openers:
                self._services.append(open_sink())
        except BaseException:
            self.exit_code = 1
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.close()
        for sink in (self._events, *self._services):
            sink.close(self.exit_code)

    def step(self, event: StepEvent) -> None:
        """Write a step to all sinks. Raises ValueError for a malformed histogram and, with a
        strict registry, for an undeclared name."""
        metrics, histograms = event["metrics"], event.get("histograms", {})
        self._registry.check([*metrics, *histograms])
        line = {key: value for key, value in event.items() if key != "alone"}
        if event.get("alone", False):
            metrics, histograms = _without_rollout(metrics), _without_rollout(histograms)
        self._write(event["step"], {**event.get("logged", {}), **metrics}, histograms, line)

    def evaluation(
        self, step: int, name: str, values: Mapping[str, float], *, is_shown: bool = True
    ) -> None:
        """Write the result of evaluation set `name` after iteration `step` to all sinks, or without
        `is_shown` to `metrics.jsonl` alone. Raises ValueError, with a strict registry, for an
        undeclared name."""
        metrics = {f"eval/{name}/{key}": value for key, value in values.items()}
        self._registry.check(metrics)
        self._write(step, metrics if is_shown else {}, {}, {"step": step, "eval": {name: values}})

    def logged(self, step: int, figures: Mapping[str, float]) -> None:
        """Write what a log function made of the evaluation after iteration `step`."""
        self._write(step, figures, {}, {"step": step, "eval": {}, "logged": figures})

    def _help(self, name: str) -> str:
        metric = self._registry.find(name)
        return "" if metric is None else metric.help

    def _write(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, Histogram],
        line: dict[str, Any],
    ) -> None:
        """The run's own files come first: what a service does costs them nothing."""
        self._line(line)
        if scalars or histograms:
            for sink in (self._events, *self._services):
                sink.write(step, scalars, histograms)

    def _line(self, line: dict[str, Any]) -> None:
        self._lines.write(msgspec.json.encode(line | {"time": time.time()}) + b"\n")
        self._lines.flush()


def _without_rollout(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("rollout/")}
