"""Checkpoints of runs as their learners leave them, and lines that load where they save."""

import os
import time
from pathlib import Path

from agentrl.cluster.layout import RunDir, with_run
from agentrl.config.toml import write_config
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.resume import run_path_of
from tests.unit.checkpoint_ranks import Backend
from tests.unit.default_lines import resolved

__all__ = ["X", "age", "begin", "said", "save"]


def said(*argv: str) -> str:
    return "\n".join(resolved(*argv).notes)


def save(folder: Path, run_id: str, *iterations: int, run_path: str = "") -> None:
    """Checkpoints of a run, as its learner leaves them; by default as one of long ago did, which
    did not say where the run is."""
    writer = CheckpointWriter(folder, Backend(), run_id=run_id, run_path=run_path, retain=1)
    writer.begin(None)
    for iteration in iterations:
        writer.save(iteration, version=iteration)


def begin(run_id: str, *argv: str, iterations: tuple[int, ...] = (10, 20)) -> Path:
    """A run of these flags that has saved; its directory."""
    config = resolved("--run-id", run_id, *argv).config
    with RunDir(config) as run:
        write_config(run.path / "config.toml", config)
        (run.path / "ledger.db").touch()
        told = with_run(config, run)
        save(Path(str(told.save)), run_id, *iterations, run_path=run_path_of(told))
    return run.path


def age(folder: Path) -> None:
    """Everything in there was written an hour ago."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)


X = ("--load", "x", "--save", "x")
