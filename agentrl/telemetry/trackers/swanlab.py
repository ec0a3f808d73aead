"""`SwanlabTracker`: a run at SwanLab; the only importer of swanlab.

Each family of metrics has steps of its own count: iterations for rollouts and evaluations,
optimizer steps for training. Histograms are left to TensorBoard. The key is handed over as a
setting of the run, and stands in no file.

SwanLab keeps the first value of a metric at a step, and says nothing of others that it drops. So
what is trained again is told of here, whether this process or an earlier one told it first.
"""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from agentrl.telemetry.trackers.base import Beginning, Known, Session, Tracker, TrackerRow

__all__ = ["SwanlabTracker"]

logger = logging.getLogger(__name__)


class SwanlabTracker(Tracker, frozen=True, kw_only=True):
    """What the flags say of SwanLab."""

    name: ClassVar[str] = "swanlab"
    title: ClassVar[str] = "SwanLab"
    remedy: ClassVar[str] = (
        "give --swanlab-key or SWANLAB_API_KEY, and --swanlab-host for a server of your own, or "
        "--swanlab-mode offline"
    )
    leftover: ClassVar[str] = ", and `swanlab sync` of the run's folder in swanlab/ sends the rest"

    swanlab_project: str | None
    swanlab_workspace: str | None
    swanlab_experiment_name: str | None
    swanlab_key: str | None
    swanlab_host: str | None
    swanlab_mode: Literal["online", "offline", "disabled"] | None

    def begin(self, beginning: Beginning) -> "_SwanlabSession":
        import swanlab

        name = self.swanlab_experiment_name or beginning.run_id
        known = beginning.known or Known(secrets.token_hex(8), name)
        run = swanlab.init(
            project=self.swanlab_project,
            workspace=self.swanlab_workspace,
            name=known.name,
            id=known.id,
            resume="allow",
            mode=self.swanlab_mode,
            log_dir=str(beginning.run_dir / "swanlab"),
            config=dict(beginning.config),
            settings=swanlab.Settings(
                api_key=self.swanlab_key,
                api_host=self.swanlab_host,
                interactive=False,
                # Of the runtime it would write down the command line, as the system has it.
                probe=swanlab.Settings.Probe(runtime=False),
                # What the run prints is in its logs, with secrets hidden.
                terminal=swanlab.Settings.Terminal(proxy_type="none"),
            ),
        )
        told = {} if beginning.known is None else self._told(beginning.run_dir / "metrics.jsonl")
        return _SwanlabSession(run, known, told)

    def _told(self, file: Path) -> dict[str, int]:
        """The last step of each metric that the run has told."""
        told: dict[str, int] = {}
        for text in file.read_bytes().splitlines() if file.exists() else ():
            with suppress(msgspec.DecodeError):  # a line that a kill tore
                line = msgspec.json.decode(text, type=_Line)
                names = line.names()
                axes = self.axes(line.step, names)
                row = TrackerRow(
                    scalars=dict.fromkeys(names, 0), histograms={}, axes=axes, time_s=0
                )
                for step, scalars in row.by_step().items():
                    told |= {name: max(step, told.get(name, step)) for name in scalars}
        return told


class _Line(msgspec.Struct, frozen=True):
    """What is read of a line of `metrics.jsonl`."""

    step: int
    metrics: Mapping[str, Any] = {}
    eval: Mapping[str, Mapping[str, Any]] = {}
    logged: Mapping[str, Any] = {}

    def names(self) -> list[str]:
        scores = [f"eval/{name}/{key}" for name, keys in self.eval.items() for key in keys]
        return [*self.metrics, *scores, *self.logged]


class _SwanlabSession(Session):
    def __init__(self, run: Any, known: Known, told: dict[str, int]) -> None:
        self._run = run
        self.known = known
        self._told = told
        self._has_warned = False

    def log(self, row: TrackerRow) -> None:
        for step, scalars in row.by_step().items():
            self._run.log(scalars, step=step)
            for name in scalars:
                if step <= self._told.get(name, -1):
                    self._warn(name, step)
                self._told[name] = max(step, self._told.get(name, step))

    def finish(self, exit_code: int) -> None:
        if exit_code:
            self._run.finish(state="crashed", error="the run did not come to its end")
        else:
            self._run.finish()

    def _warn(self, name: str, step: int) -> None:
        if not self._has_warned:
            logger.warning(
                "SwanLab was told %s of step %d before; it keeps what it was told first and drops "
                "the rest, as of iterations that are trained again; metrics.jsonl has both",
                name,
                step,
            )
        self._has_warned = True
