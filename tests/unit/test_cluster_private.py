"""Who may read what a run writes: its own folder is its user's alone, places elsewhere are open as
its user's umask has it."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.quarantine import Quarantine
from agentrl.buffer.rows import Mark
from agentrl.buffer.snapshots import Snapshots
from agentrl.buffer.store import PayloadStore
from agentrl.cluster.host import ProcessHost, ProcessOrder
from agentrl.cluster.layout import RunDir
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.learner.megatron.hf_weights import write_checkpoint
from agentrl.telemetry.logging import setup_logging
from agentrl.telemetry.phases import Phases
from agentrl.telemetry.recorder import Recorder
from tests.manual_clock import ManualClock
from tests.unit.checkpoint_ranks import saved

MODEL = Path(__file__).resolve().parents[2] / "agentrl" / "envs" / "search_r1" / "model"


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> Iterator[None]:
    """A user whose files others may read, in a folder where they may."""
    before = os.umask(0o022)
    tmp_path.chmod(0o755)
    yield
    os.umask(before)
    logging.basicConfig(force=True)  # closes the log


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")
    }


def test_a_run_directory_is_the_user_s_alone(tmp_path: Path) -> None:
    config = RunConfig(run_dir=str(tmp_path / "runs"), run_id="r")
    with RunDir(config) as run:
        write_config(run.path / "config.toml", config)
        setup_logging("INFO", name="driver", path=run.path / "logs" / "driver.log")
        Phases(run.path / "phases.json", ManualClock(), 0.0).mark("parsed")
        with Recorder(run.path, config, ManualClock(), stream=sys.stderr) as recorder:
            recorder.finish("complete")
        host = ProcessHost()
        host.start(
            ProcessOrder("worker-0", (sys.executable, "-c", ""), "worker", log=run.log("worker-0"))
        )
        assert host.next_exits(0, 60.0)
        (run.ray / "session_2" / "logs").mkdir(parents=True)
        (run.ray / "session_2" / "logs" / "raylet.out").touch(0o644)
        run.keep_ray_logs()
        with (
            Ledger(run.path / "ledger.db") as ledger,
            PayloadStore(run.path / "payload", segment_bytes=100, first=1) as store,
        ):
            ledger.commit([Mark("a", 1)])
            store.append([b"x"])
            Snapshots(run.path / "snapshots").keep((1, 0), b"x")
            Quarantine(run.path / "quarantine").keep("why", "who", [b"x"])
            saved(run.path / "recovery", 1)
            write_checkpoint(run.path / "hf", [("a", torch.zeros(2))], MODEL, torch.float32)
            found = modes(run.path)
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert {name for name, mode in found.items() if mode not in (0o600, 0o700)} == set()
    wanted = {"config.toml", "run.json", "summary.json", "metrics.jsonl", "phases.json"}
    wanted |= {"ledger.db", "ledger.db-wal", "payload/00000001.seg", "snapshots/1-0"}
    wanted |= {"quarantine/0001.bin", "logs/driver.log", "logs/worker-0.log", "hf/config.json"}
    wanted |= {"hf/model.safetensors", "recovery/iteration_0000001/manifest.json"}
    wanted |= {"logs/ray/raylet.out"}
    assert wanted <= found.keys()
    assert any(name.startswith("tensorboard/events") for name in found)


def test_a_run_that_others_could_enter_is_closed_when_it_is_continued(tmp_path: Path) -> None:
    config = RunConfig(run_dir=str(tmp_path), run_id="r", resume="auto")
    (tmp_path / "r").mkdir(0o755)
    with RunDir(config) as run:
        assert run.path.stat().st_mode & 0o777 == 0o700


def test_places_elsewhere_are_as_open_as_the_user_has_it(tmp_path: Path) -> None:
    saved(tmp_path / "save", 1)
    write_checkpoint(tmp_path / "hf", [("a", torch.zeros(2))], MODEL, torch.float32)
    assert set(modes(tmp_path).values()) == {0o644, 0o755}
