"""Runs that are tracked by stand-ins of the services' packages (`tests/standins`)."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrl.cluster.tracking import shown_config, trackers
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.secrets import secrets_of
from agentrl.telemetry.sinks import MetricsWriter
from agentrl.telemetry.trackers.run import TrackedRun

__all__ = ["calls", "opened", "resolved", "standing_in", "write"]

STANDINS = Path(__file__).parent / "standins"
_VARIABLES = ("WANDB_API_KEY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")


@contextmanager
def standing_in(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in, where the package would be."""
    monkeypatch.syspath_prepend(STANDINS)
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before = {each: sys.modules.pop(each) for each in _modules(name)}
    try:
        yield importlib.import_module(name)
    finally:
        for each in _modules(name):
            del sys.modules[each]
        sys.modules.update(before)


def _modules(name: str) -> list[str]:
    return [each for each in sys.modules if each == name or each.startswith(f"{name}.")]


def resolved(words: str) -> RunConfig:
    """The configuration of a command line."""
    return parse(["--device", "cpu", *words.split()], "train_async").config


def opened(config: RunConfig, run_dir: Path, **more: Any) -> TrackedRun:
    """The run at its one service."""
    (tracker,) = trackers(config)
    secrets = secrets_of(config)
    return TrackedRun(tracker, run_dir, "run-7", shown_config(config), secrets=secrets, **more)


def write(config: RunConfig, run_dir: Path, exit_code: int = 0) -> None:
    """Two iterations and an evaluation, as a run writes them."""
    run_dir.mkdir(exist_ok=True)
    with MetricsWriter(run_dir, openers=[partial(opened, config, run_dir)]) as writer:
        writer.exit_code = exit_code
        writer.evaluation(0, "held", {"score": 0.25, "n": 4, "pass@4": 0.5})
        for step in (1, 2):
            numbers = {"rollout/reward_mean": 0.5, "train/loss": -0.1}
            ages = {"train/age": (list(range(4)), [5, 3, 1])}
            writer.step({"step": step, "metrics": numbers, "histograms": ages})


def calls(package: ModuleType, name: str) -> list[dict[str, Any]]:
    """What was said in the calls of that name."""
    return [said for call, said in package.RECORDED.calls if call == name]
