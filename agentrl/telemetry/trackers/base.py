"""What a service is that a run is tracked by: `Tracker`, its flags, and `Session`, the run there.

    rollout/* perf/* buffer/*    over rollout/step: the iteration
    train/*                      over train/step: optimizer steps so far
    eval/*                       over eval/step: the iteration that was measured

A further service is one module beside this one, named as its package, with one subclass of
`Tracker` (docs/tracking.md writes one). The module is the only importer of the package, and
imports it in `begin`. What is the same for every service is in `run.py`: the thread that speaks to
it, its failures, the end, and how a continued run finds its place again.
"""

import importlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from agentrl.shipped import TRACKERS

__all__ = [
    "AXES",
    "Beginning",
    "Known",
    "Session",
    "Tracker",
    "TrackerRow",
    "environment",
    "load_tracker",
]

#: Families of metrics, and the axis of each.
AXES = {
    "rollout": "rollout/step",
    "perf": "rollout/step",
    "buffer": "rollout/step",
    "train": "train/step",
    "eval": "eval/step",
}


class Known(msgspec.Struct, frozen=True):
    """`NAME.json` of a run directory: what the run is called at the service."""

    id: str
    name: str
    group: str | None = None


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """A run that begins at a service. `known`: what it is called there, if it goes on; `config`:
    what is shown beside its curves; `finish_s`: how long its end may take."""

    run_dir: Path
    run_id: str
    config: Mapping[str, Any]
    known: Known | None
    finish_s: float


class TrackerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of an iteration, or of an evaluation after it. `axes`: the step on each axis that
    they stand over; `time_s`: the wall time at which they came; histograms: (edges, counts)."""

    scalars: Mapping[str, float]
    histograms: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    axes: Mapping[str, int]
    time_s: float

    def by_step(self) -> dict[int, dict[str, float]]:
        """The scalars that stand at the same step, each on its own axis; of a family that nobody
        declared, or whose axis is not here, on the first."""
        found: dict[int, dict[str, float]] = {}
        first = next(iter(self.axes))
        for name, value in self.scalars.items():
            axis = AXES.get(name.partition("/")[0], first)
            found.setdefault(self.axes.get(axis, self.axes[first]), {})[name] = value
        return found


class Session(Protocol):
    """A run at a service, and what it is called there. One thread calls it; whatever it raises is a
    failure of the service."""

    known: Known

    def log(self, row: TrackerRow) -> None:
        """Hand over a row."""
        ...

    def finish(self, exit_code: int) -> None:
        """End the run there, once what was handed over is there; 0: complete."""
        ...


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that a service reads, each a field of the flag's own name.

    name      of the service: of its package, extra, module and of `--use-NAME`
    title     what messages call it
    remedy    what to do where the run did not begin there
    leftover  what to do about metrics that the end did not wait for, if anything
    """

    name: ClassVar[str]
    title: ClassVar[str]
    remedy: ClassVar[str]
    leftover: ClassVar[str] = ""

    num_steps_per_rollout: int

    def __repr__(self) -> str:
        shown = {
            name: "[hidden]" if value and name.endswith("_key") else value
            for name, value in msgspec.structs.asdict(self).items()
        }
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @property
    def counts_steps(self) -> bool:
        """Whether rollouts and evaluations are counted in optimizer steps too."""
        return False

    def begin(self, beginning: Beginning) -> Session:
        """Begin the run at the service, or go on with it. Raises whatever the package raises."""
        raise NotImplementedError

    def axes(self, iteration: int, names: Collection[str]) -> dict[str, int]:
        """Where the metrics of these names stand, which are of one iteration or evaluation."""
        steps = iteration * self.num_steps_per_rollout
        shown = steps if self.counts_steps else iteration
        evaluated = [name.startswith("eval/") for name in names]
        if all(evaluated):
            return {"eval/step": shown}
        axes = {"rollout/step": shown, "train/step": steps}
        return {**axes, "eval/step": shown} if any(evaluated) else axes  # a log function names both


def load_tracker(name: str) -> type[Tracker]:
    """The service of that name."""
    module = importlib.import_module(TRACKERS.places[name])
    (found,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Tracker) and each is not Tracker
    )
    return found


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables for a while; those without a value stay as they are."""
    given = {name: value for name, value in values.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
