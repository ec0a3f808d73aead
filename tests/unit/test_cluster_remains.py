"""What a run left is judged before anything is started: by a dry run, and by the real one."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import Mark
from agentrl.cli import train
from agentrl.cluster.remains import judge
from agentrl.config.command_line import read_flags
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from agentrl.config.toml import write_config
from agentrl.errors import AgentRLError, ConfigError, DataError, EnvironmentSetupError, StoreError
from tests.unit.buffer_runs import trained_run
from tests.unit.checkpoint_ranks import saved

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the default job: one lease retired, one to be trained, a checkpoint."""
    run = tmp_path / "r"
    trained_run(run)
    saved(run / "recovery", 1, run_id=run.name)
    write_config(run / "config.toml", layered(read_flags([]), "train_async")[0])
    return run


def garbage(run: Path) -> None:
    (run / "ledger.db").write_bytes(b"garbage" * 1000)


def cut(run: Path) -> None:
    data = (run / "ledger.db").read_bytes()
    (run / "ledger.db").write_bytes(data[: len(data) // 2])


def empty(run: Path) -> None:
    (run / "ledger.db").write_bytes(b"")


def other_reward(run: Path) -> None:
    db = sqlite3.connect(run / "ledger.db")
    db.execute("UPDATE groups SET row = replace(row, '0.0', '8.0') WHERE mint = 2")
    db.commit()
    db.close()


def flipped_log(run: Path) -> None:
    """A buffer was killed, and one bit of its log flipped."""
    with Ledger(run / "ledger.db") as ledger:
        for number in range(5):
            ledger.commit([Mark("a", number)])
        left = {path: path.read_bytes() for path in run.glob("ledger.db*")}
    for path, data in left.items():
        place = len(data) // 2
        flip = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        path.write_bytes(flip if path.name.endswith("-wal") else data)


def no_payload(run: Path) -> None:
    shutil.rmtree(run / "payload")


def short_payload(run: Path) -> None:
    (run / "payload" / "00000001.seg").write_bytes(b"x" * 20)


def no_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "recovery")


def flipped(checkpoint: Path) -> None:
    file = checkpoint / "state" / "rank-0"
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))


def damaged_checkpoint(run: Path) -> None:
    flipped(run / "recovery" / "iteration_0000001")


def name_of_a_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "recovery")
    (run / "recovery" / "iteration_0000009").mkdir(parents=True)


DAMAGES = [
    (garbage, StoreError, "is no readable ledger"),
    (cut, StoreError, "damage|no readable ledger"),
    (empty, StoreError, "is empty or gone, and .*payload is not: its rows are lost"),
    (other_reward, StoreError, "lost: the task, state, fate and rewards of group 00000002"),
    (flipped_log, StoreError, "ledger.db-wal: frame 3 is damaged; lost: 3 frames of 3 commits"),
    (no_payload, StoreError, "episode 00000002/0: segment 1 cannot be read"),
    (short_payload, StoreError, "episode 00000002/0: segment 1 has 20 bytes of 30"),
    (no_checkpoint, ConfigError, "has no checkpoint, and this run's leases up to 1 are retired"),
    (damaged_checkpoint, DataError, "none of the 1 checkpoints in .* is whole"),
    (name_of_a_checkpoint, DataError, "none of the 1 checkpoints in .* is whole"),
]


def test_a_run_that_can_go_on_is_left_as_it_is(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert judge(run, RunConfig()) == []
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_is_passed_over_for_one_that_covers_what_is_retired(
    run: Path,
) -> None:
    shutil.rmtree(run / "recovery")
    saved(run / "recovery", 1, 2, run_id=run.name)
    flipped(run / "recovery" / "iteration_0000002")
    (note,) = judge(run, RunConfig())
    assert "a checkpoint of the run is passed over: " in note
    assert "iteration_0000002: state/rank-0 is damaged" in note


def test_a_run_that_ended_as_it_began_can_begin(tmp_path: Path) -> None:
    judge(tmp_path, RunConfig())
    (tmp_path / "ledger.db").touch()
    judge(tmp_path, RunConfig())


@pytest.mark.parametrize("is_empty", [True, False])
def test_checkpoints_in_a_shared_folder_without_their_ledger_are_told(
    tmp_path: Path, is_empty: bool
) -> None:
    """As after a node was lost with its disk: --save is shared, the run's directory was not."""
    run, save = tmp_path / "r", tmp_path / "save"
    run.mkdir()
    if is_empty:
        (run / "ledger.db").touch()
    config = RunConfig(save=str(save))
    saved(save, 1, 2, run_id="another")
    assert judge(run, config) == [], "they are another run's"
    saved(save / "r", 3, 4, run_id="r")
    with pytest.raises(StoreError) as error:
        judge(run, config)
    there = save / "r/iteration_0000004"
    assert "ledger.db is empty or gone" in str(error.value)
    assert f"{there} is a checkpoint of the run r" in str(error.value)
    assert f"--load {there}" in str(error.value)
    judge(run, RunConfig(save=str(save), eval_only=True))


def test_a_run_that_only_evaluates_needs_no_checkpoint(run: Path) -> None:
    no_checkpoint(run)
    judge(run, RunConfig(eval_only=True))


def test_a_run_that_goes_on_is_not_judged(run: Path) -> None:
    with Ledger(run / "ledger.db"), pytest.raises(EnvironmentSetupError, match="in use"):
        judge(run, RunConfig())


@pytest.mark.parametrize(("damage", "error", "said"), DAMAGES)
def test_damage_is_told_before_anything_is_started(
    run: Path,
    damage: Callable[[Path], None],
    error: type[AgentRLError],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(run)
    with pytest.raises(error, match=said):
        judge(run, RunConfig())
    assert train.main(["--resume", str(run), "--dry-run"], "train_async") == error.exit_code
    assert not (run / "summary.json").exists()
    assert train.main(["--resume", str(run)], "train_async") == error.exit_code
    told = capsys.readouterr()
    assert f"--resume {run} goes on" not in told.out + told.err
    assert "Traceback" not in told.out + told.err
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    assert not list((run / "logs").glob("buffer.log"))
