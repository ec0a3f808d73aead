"""`WandbTracker`: a run at Weights & Biases; the only importer of wandb.

The key is handed over in the environment while W&B starts, and stands in no file.
"""

import secrets
import string
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from agentrl.disk import make_folder
from agentrl.telemetry.trackers.base import (
    AXES,
    Beginning,
    Known,
    Session,
    Tracker,
    TrackerRow,
    environment,
)

__all__ = ["WandbTracker"]

_LETTERS = string.ascii_lowercase + string.digits
#: The most buckets of a histogram that W&B takes.
_MAX_BUCKETS = 512


class WandbTracker(Tracker, frozen=True, kw_only=True):
    """What the flags say of W&B."""

    name: ClassVar[str] = "wandb"
    title: ClassVar[str] = "Weights & Biases"
    remedy: ClassVar[str] = (
        "give --wandb-key or WANDB_API_KEY, and --wandb-host for a server of your own, or "
        "--wandb-mode offline"
    )
    leftover: ClassVar[str] = ", and `wandb sync` of the run's folder in wandb/ sends the rest"

    wandb_project: str | None
    wandb_group: str | None
    disable_wandb_random_suffix: bool
    wandb_team: str | None
    wandb_key: str | None
    wandb_host: str | None
    wandb_mode: Literal["online", "offline", "disabled"] | None
    wandb_dir: str | None
    wandb_run_id: str | None
    wandb_always_use_train_step: bool

    @property
    def counts_steps(self) -> bool:
        return self.wandb_always_use_train_step

    def begin(self, beginning: Beginning) -> "_WandbSession":
        known = self._known(beginning)
        directory = Path(self.wandb_dir or beginning.run_dir)
        make_folder(directory)
        with environment({"WANDB_API_KEY": self.wandb_key, "WANDB_BASE_URL": self.wandb_host}):
            import wandb

            run = wandb.init(
                entity=self.wandb_team,
                project=self.wandb_project,
                group=known.group,
                name=known.name,
                id=known.id,
                resume="allow",
                dir=str(directory),
                mode=self.wandb_mode,
                config=dict(beginning.config),
                # What the run prints is in its logs, with secrets hidden.
                settings=wandb.Settings(console="off", **_bound(wandb, beginning.finish_s)),
            )
            for axis in dict.fromkeys(AXES.values()):
                run.define_metric(axis)
            for family, axis in AXES.items():
                run.define_metric(f"{family}/*", step_metric=axis)
        return _WandbSession(wandb, run, known)

    def _known(self, beginning: Beginning) -> Known:
        """What the run is called: as before, where it is continued under the same id."""
        before = beginning.known
        if before is not None and self.wandb_run_id in (None, before.id):
            return before
        group = self.wandb_group
        if group is not None and not self.disable_wandb_random_suffix:
            group = f"{group}_{_random(6)}"
        return Known(self.wandb_run_id or _random(12), group or beginning.run_id, group)


class _WandbSession(Session):
    def __init__(self, wandb: ModuleType, run: Any, known: Known) -> None:
        self._wandb = wandb
        self._run = run
        self.known = known

    def log(self, row: TrackerRow) -> None:
        said: dict[str, Any] = {**row.scalars, **row.axes}
        for name, (edges, counts) in row.histograms.items():
            if len(counts) <= _MAX_BUCKETS:
                said[name] = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
        self._run.log(said)

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


def _bound(wandb: ModuleType, seconds: float) -> dict[str, float]:
    """W&B's own deadline of uploads, which its hook at exit keeps too; old releases have none."""
    known = getattr(wandb.Settings, "model_fields", {})
    return {"finish_timeout": seconds} if "finish_timeout" in known else {}


def _random(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
