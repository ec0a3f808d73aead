"""A stand-in for the package wandb: the calls that agentrl makes, recorded, in the signatures of
wandb 0.19 and later (https://docs.wandb.ai/ref/python/init/). Anything else is a TypeError. What
W&B writes of a program (its arguments) goes to the folder of the run, as there."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.standins.recorded import Recorded

__all__ = ["RECORDED", "Error", "Histogram", "Run", "Settings", "init"]


class Error(Exception):
    """The base of W&B's errors."""


RECORDED = Recorded(Error)


class Settings:
    model_fields: ClassVar[Sequence[str]] = ("console", "finish_timeout", "mode", "silent")

    def __init__(
        self,
        *,
        console: Literal["auto", "off", "wrap", "redirect", "wrap_raw", "wrap_emu"] = "auto",
        mode: Literal["online", "offline", "disabled", "shared"] = "online",
        silent: bool = False,
        finish_timeout: float = 0.0,
    ) -> None:
        self.console, self.mode, self.silent = console, mode, silent
        self.finish_timeout = finish_timeout


class Histogram:
    MAX_LENGTH = 512

    def __init__(
        self,
        sequence: Sequence[float] | None = None,
        np_histogram: tuple[list[float], list[float]] | None = None,
        num_bins: int = 64,
    ) -> None:
        assert sequence is None
        assert np_histogram is not None
        self.histogram, self.bins = np_histogram
        if len(self.histogram) > self.MAX_LENGTH:
            raise ValueError(f"The maximum length of a histogram is {self.MAX_LENGTH}")
        if len(self.histogram) + 1 != len(self.bins):
            raise ValueError("len(bins) must be len(histogram) + 1")


class Run:
    def __init__(self, id: str) -> None:
        self.id = id

    def define_metric(
        self,
        name: str,
        step_metric: "str | None" = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> None:
        RECORDED("define_metric", name=name, step_metric=step_metric)

    def log(
        self, data: dict[str, Any], step: int | None = None, commit: bool | None = None
    ) -> None:
        RECORDED("log", data=data, step=step)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        RECORDED("finish", exit_code=exit_code)


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | None = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: dict[str, Any] | None = None,
    config_exclude_keys: list[str] | None = None,
    config_include_keys: list[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: Literal["online", "offline", "disabled", "shared"] | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | Literal["allow", "never", "must", "auto"] | None = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Settings | None = None,
) -> Run:
    said = {
        "entity": entity,
        "project": project,
        "dir": dir,
        "id": id,
        "name": name,
        "config": config,
        "group": group,
        "mode": mode,
        "resume": resume,
        "console": settings.console if settings else None,
        "finish_timeout": settings.finish_timeout if settings else None,
        "key": os.environ.get("WANDB_API_KEY"),
        "host": os.environ.get("WANDB_BASE_URL"),
    }
    RECORDED("init", **said)
    if not id or any(character in "/\\#?%:" for character in id):
        raise Error(f"Invalid run ID {id!r}")
    files = Path(str(dir), "wandb", f"run-{id}", "files")
    files.mkdir(parents=True, exist_ok=True)
    about = {"program": sys.argv[0], "args": sys.argv[1:], "config": config}
    (files / "wandb-metadata.json").write_text(json.dumps(about))
    return Run(id)
