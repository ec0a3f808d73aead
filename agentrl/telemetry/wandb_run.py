"""`WandbSink`: a run's metrics at Weights & Biases; the only importer of wandb.

    rollout/* perf/* buffer/*    over rollout/step: the iteration
    train/*                      over train/step: optimizer steps so far
    eval/*                       over eval/step: the iteration that was measured

A continued run goes on in the same run at W&B, whose id and name `wandb.json` keeps. The key is
handed over in the environment while W&B starts, and stands in no file. A service that fails after
the start costs its own curves and not the run: `metrics.jsonl` has all of them. W&B raises what its
connection raises as well as its own errors, so every Exception counts as its failure.
"""

import logging
import os
import secrets
import string
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from agentrl.disk import make_folder, replace_file
from agentrl.errors import EnvironmentSetupError

__all__ = ["WandbSettings", "WandbSink"]

logger = logging.getLogger(__name__)

_LETTERS = string.ascii_lowercase + string.digits
#: The most buckets of a histogram that W&B takes.
_MAX_BUCKETS = 512
#: W&B gives up by itself first, and says so; it is waited for this much longer.
_GRACE = 1.1
_AXES = {
    "rollout/*": "rollout/step",
    "perf/*": "rollout/step",
    "buffer/*": "rollout/step",
    "train/*": "train/step",
    "eval/*": "eval/step",
}


class WandbSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags say. `steps_per_iteration`: optimizer steps; `counts_steps`: they are the axis
    of rollouts and evaluations too; `finish_s`: how long the end waits for uploads."""

    project: str | None = None
    group: str | None = None
    has_suffix: bool = True
    team: str | None = None
    key: str | None = None
    host: str | None = None
    mode: Literal["online", "offline"] | None = None
    directory: str | None = None
    run_id: str | None = None
    steps_per_iteration: int = 1
    counts_steps: bool = False
    finish_s: float = 300.0

    def __repr__(self) -> str:
        values = msgspec.structs.asdict(self) | {"key": self.key and "[hidden]"}
        return f"WandbSettings({', '.join(f'{k}={v!r}' for k, v in values.items())})"

    def open(self, run_dir: Path, run_id: str, config: Mapping[str, Any]) -> "WandbSink":
        """Begin, or go on with, the run at W&B. Raises EnvironmentSetupError."""
        return WandbSink(self, run_dir, run_id, config)


class _Known(msgspec.Struct, frozen=True):
    """`wandb.json` of a run directory: what the run is called at W&B."""

    id: str
    name: str
    group: str | None


class WandbSink:
    """A run at W&B. `config`: what it shows of the run's settings."""

    def __init__(
        self, settings: WandbSettings, run_dir: Path, run_id: str, config: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        self._has_failed = False
        known = _known(settings, run_dir, run_id)
        self._directory = directory = Path(settings.directory or run_dir)
        make_folder(directory)
        with _environment({"WANDB_API_KEY": settings.key, "WANDB_BASE_URL": settings.host}):
            self._wandb = _wandb()
            try:
                self._run = self._wandb.init(
                    entity=settings.team,
                    project=settings.project,
                    group=known.group,
                    name=known.name,
                    id=known.id,
                    resume="allow",
                    dir=str(directory),
                    mode=settings.mode,
                    config=dict(config),
                    # What the run prints is in its logs, with secrets hidden.
                    settings=self._wandb.Settings(
                        console="off", **_bound(self._wandb, settings.finish_s)
                    ),
                )
                for axis in dict.fromkeys(_AXES.values()):
                    self._run.define_metric(axis)
                for names, axis in _AXES.items():
                    self._run.define_metric(names, step_metric=axis)
            except Exception as error:
                raise EnvironmentSetupError(
                    f"--use-wandb: Weights & Biases did not begin the run: {self._hidden(error)}; "
                    "give --wandb-key or WANDB_API_KEY, and --wandb-host for a server of your own, "
                    "or --wandb-mode offline"
                ) from None
        replace_file(run_dir / "wandb.json", msgspec.json.encode(known) + b"\n")

    def write(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ) -> None:
        """Hand over the numbers of an iteration, or of an evaluation after it."""
        row: dict[str, Any] = dict(scalars)
        steps = step * self._settings.steps_per_iteration
        shown = steps if self._settings.counts_steps else step
        if any(name.startswith("eval/") for name in scalars):
            row["eval/step"] = shown
        else:
            row |= {"rollout/step": shown, "train/step": steps}
        try:
            for name, (edges, counts) in histograms.items():
                if len(counts) <= _MAX_BUCKETS:
                    row[name] = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
            self._run.log(row)
        except Exception as error:
            self._tell(error)

    def close(self, exit_code: int = 0) -> None:
        """End the run at W&B, once what was handed over is there, or five minutes are over."""

        def finish() -> None:
            try:
                self._run.finish(exit_code=exit_code)
            except Exception as error:
                self._tell(error)

        ending = threading.Thread(target=finish, name="wandb-finish", daemon=True)
        ending.start()
        ending.join(self._settings.finish_s * _GRACE)
        if ending.is_alive():
            logger.warning(
                "W&B has not taken all metrics within %g s; metrics.jsonl has them, and "
                "`wandb sync` of the run's folder under %s sends the rest",
                self._settings.finish_s,
                self._directory / "wandb",
            )

    def _tell(self, error: Exception) -> None:
        if not self._has_failed:
            logger.warning("W&B took no metrics: %s; metrics.jsonl has them", self._hidden(error))
        self._has_failed = True

    def _hidden(self, error: Exception) -> str:
        key = self._settings.key
        return str(error).replace(key, "[hidden]") if key else str(error)


def _wandb() -> ModuleType:
    try:
        import wandb
    except ImportError as error:
        raise EnvironmentSetupError(
            f"--use-wandb needs its package: pip install 'agentrl[wandb]' ({error})"
        ) from error
    module: ModuleType = wandb
    return module


def _bound(wandb: ModuleType, seconds: float) -> dict[str, float]:
    """W&B's own deadline of uploads, which its hook at exit keeps too; old releases have none."""
    known = getattr(wandb.Settings, "model_fields", {})
    return {"finish_timeout": seconds} if "finish_timeout" in known else {}


def _known(settings: WandbSettings, run_dir: Path, run_id: str) -> _Known:
    """What the run is called: as before, where it is continued under the same id."""
    try:
        before = msgspec.json.decode((run_dir / "wandb.json").read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        before = None
    if before is not None and settings.run_id in (None, before.id):
        return before
    group = settings.group
    if group is not None and settings.has_suffix:
        group = f"{group}_{_random(6)}"
    return _Known(settings.run_id or _random(12), group or run_id, group)


def _random(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
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
