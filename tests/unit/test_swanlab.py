"""SwanLab: what it is told. A stand-in takes the calls in the package's own signatures
(`tests/standins/swanlab`)."""

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from agentrl.cluster.tracking import trackers
from agentrl.config.tracking import check_trackers
from agentrl.telemetry.sinks import MetricsWriter
from tests.tracked import calls, opened, resolved, standing_in, write

KEY = "abcdefghijklmnopqrstu"


@pytest.fixture
def swanlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with standing_in("swanlab", monkeypatch) as package:
        yield package


def test_swanlab_is_told_every_number_at_its_step(swanlab: ModuleType, tmp_path: Path) -> None:
    write(resolved("--use-swanlab --num-steps-per-rollout 2"), tmp_path)

    held = {"eval/held/score": 0.25, "eval/held/n": 4, "eval/held/pass@4": 0.5}
    assert [(said["step"], said["data"]) for said in calls(swanlab, "log")] == [
        (0, held),
        (1, {"rollout/reward_mean": 0.5}),
        (2, {"train/loss": -0.1}),
        (2, {"rollout/reward_mean": 0.5}),
        (4, {"train/loss": -0.1}),
    ]
    assert calls(swanlab, "finish") == [{"state": "success", "error": None}]


def test_the_run_begins_as_the_flags_say(swanlab: ModuleType, tmp_path: Path) -> None:
    config = resolved(
        "--use-swanlab --swanlab-project agents --swanlab-workspace us --swanlab-mode offline "
        f"--swanlab-experiment-name first --swanlab-key {KEY} --swanlab-host http://127.0.0.1:8000"
    )
    write(config, tmp_path)

    (begun,) = calls(swanlab, "init")
    shown = begun.pop("config")
    assert len(begun.pop("id")) == 16
    assert begun == {
        "log_dir": str(tmp_path / "swanlab"),
        "mode": "offline",
        "workspace": "us",
        "project": "agents",
        "name": "first",
        "resume": "allow",
        "key": KEY,
        "host": "http://127.0.0.1:8000",
        "interactive": False,
        "terminal": "none",
    }
    assert shown["rollout_batch_size"] == config.rollout_batch_size
    assert shown["swanlab_key"] is None
    (written,) = tmp_path.rglob("swanlab-metadata.json")
    assert json.loads(written.read_text())["runtime"] is None  # with the command line


def test_a_continued_run_goes_on_in_its_run(swanlab: ModuleType, tmp_path: Path) -> None:
    write(resolved("--use-swanlab"), tmp_path, exit_code=1)
    write(resolved("--use-swanlab --swanlab-experiment-name other"), tmp_path)

    first, again = calls(swanlab, "init")
    assert (first["id"], first["name"]) == (again["id"], again["name"])
    assert first["resume"] == again["resume"] == "allow"
    assert [said["state"] for said in calls(swanlab, "finish")] == ["crashed", "success"]


def test_what_is_trained_again_is_warned_of_once(
    swanlab: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SwanLab drops it and says nothing."""
    config = resolved("--use-swanlab --num-steps-per-rollout 2")
    with MetricsWriter(tmp_path, openers=[partial(opened, config, tmp_path)]) as writer:
        for name in ("held", "hard"):  # of one step, and of two metrics
            writer.evaluation(0, name, {"score": 0.25})
        for step in (1, 2, 3):
            writer.step({"step": step, "metrics": {"train/loss": 0.5}})
        writer.evaluation(3, "held", {"score": 0.5})
        assert caplog.text == ""
        for step in (2, 3, 4):
            writer.step({"step": step, "metrics": {"train/loss": 0.25}})
    (warning,) = caplog.messages
    assert (
        "SwanLab was told train/loss of step 4 before; it keeps what it was told first" in warning
    )


def test_what_a_continued_run_trains_again_is_warned_of(
    swanlab: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = resolved("--use-swanlab --num-steps-per-rollout 2")
    write(config, tmp_path, exit_code=1)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "metr\n')  # as a kill leaves it
    openers = [partial(opened, config, tmp_path)]
    with MetricsWriter(tmp_path, openers=openers) as writer:
        writer.step({"step": 3, "metrics": {"train/loss": 0.5}})
        writer.evaluation(1, "held", {"score": 0.5})
        writer.evaluation(0, "new", {"score": 0.5})
    assert not [told for told in caplog.messages if "SwanLab" in told]
    with MetricsWriter(tmp_path, openers=openers) as writer:
        writer.evaluation(1, "held", {"score": 0.5})
        writer.step({"step": 2, "metrics": {"train/loss": 0.5}})
    (warning,) = [told for told in caplog.messages if "SwanLab" in told]
    assert "SwanLab was told eval/held/score of step 1 before" in warning


def test_a_mode_that_is_disabled_needs_no_package_and_sends_nothing() -> None:
    config = resolved("--use-swanlab --swanlab-mode disabled")
    assert trackers(config) == []
    check_trackers(config)


def test_swanlab_does_not_take_the_signals_of_the_run(swanlab: ModuleType, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    write(resolved("--use-swanlab"), tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
