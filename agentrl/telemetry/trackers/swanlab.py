"""`SwanlabTracker`: a run at SwanLab; the only importer of swanlab.

Each family of metrics has steps of its own count: iterations for rollouts and evaluations,
optimizer steps for training. Histograms are left to TensorBoard. The key is handed over as a
setting of the run, and stands in no file.
"""

import secrets
from typing import Any, ClassVar, Literal

from agentrl.telemetry.trackers.base import Beginning, Known, Row, Session, Tracker

__all__ = ["SwanlabTracker"]


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
        return _SwanlabSession(run, known)


class _SwanlabSession(Session):
    def __init__(self, run: Any, known: Known) -> None:
        self._run = run
        self.known = known

    def log(self, row: Row) -> None:
        for step, scalars in row.by_step().items():
            self._run.log(scalars, step=step)

    def finish(self, exit_code: int) -> None:
        if exit_code:
            self._run.finish(state="crashed", error="the run did not come to its end")
        else:
            self._run.finish()
