"""The ledger file: whole commits of one buffer, and what it refuses to open."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger, LedgerReader
from agentrl.buffer.moment import read_moment
from agentrl.buffer.rows import EpisodeRow, GroupRow, Mark, StoredTrajectory
from agentrl.config.local_disk import check_ledgers_disk, refuse_network_file_system
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError, InfrastructureError, StoreError
from agentrl.types import Outcome, PayloadRef, Task, TrajectoryMeta


def test_a_commit_that_fails_leaves_nothing_of_its_batch(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        bad = GroupRow(mint=2, task=Task("b", {"x": object()}), size=1, cursor=2)
        with pytest.raises(TypeError):
            ledger.commit([GroupRow(mint=1, task=Task("a", {}), size=1, cursor=1), bad])
        assert ledger.load().minted == 0


def test_a_second_buffer_on_the_same_ledger_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([Mark("a", 1)])
        with pytest.raises(EnvironmentSetupError, match="in use by another buffer"):
            Ledger(tmp_path / "ledger.db")


def test_a_ledger_of_another_schema_or_no_ledger_at_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path):
        pass
    for version in (1, 99):
        set_version(path, version)
        with pytest.raises(StoreError, match=f"schema {version}, .* writes 3: finish .* --load "):
            Ledger(path)
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(StoreError, match="no readable ledger"):
        Ledger(path)


@pytest.mark.parametrize("number", [-559038737, -1, 1000])
def test_a_schema_that_no_version_can_have_written_is_damage(tmp_path: Path, number: int) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path):
        pass
    set_version(path, number)
    told = rf"(?s)damaged in 1 place; bring .*its header: {number} is the schema of no agentrl$"
    for open_it in (LedgerReader, Ledger, read_moment):
        with pytest.raises(StoreError, match=told):
            open_it(path)


def test_a_ledger_of_the_schema_before_is_read_and_then_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.commit([Mark("a", 1)])
    set_version(path, 2)
    with LedgerReader(path) as ledger:
        assert ledger.load().marks == (Mark("a", 1),)
    assert version_of(path) == 2, "a reader changes no byte"
    with Ledger(path) as ledger:
        assert ledger.load().marks == (Mark("a", 1),)
    assert version_of(path) == 3, "earlier code refuses it from now on"


def set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={version}")


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n"
    with pytest.raises(EnvironmentSetupError, match=kind):
        refuse_network_file_system(tmp_path / "run" / "ledger.db", mounts)
    refuse_network_file_system(Path("/elsewhere/ledger.db"), mounts)
    said = f"{tmp_path}.* a network file system .{kind}.: a ledger needs a local disk"
    for config in (RunConfig(run_dir=f"{tmp_path}/runs"), RunConfig(resume=f"{tmp_path}/runs/r")):
        with pytest.raises(EnvironmentSetupError, match=said):
            check_ledgers_disk(config, mounts)
    check_ledgers_disk(RunConfig(run_dir="/elsewhere", save=str(tmp_path)), mounts)


def killed(folder: Path, commits: int) -> Path:
    """A ledger as a buffer that is killed leaves it, with all that it wrote in the log."""
    (folder / "lived").mkdir()
    with Ledger(folder / "lived" / "ledger.db") as ledger:
        for number in range(1, commits + 1):
            ledger.commit([GroupRow(number, Task(str(number), {}), 1, number)])
        for file in (folder / "lived").iterdir():
            shutil.copy(file, folder)
    return folder / "ledger.db"


def test_a_damaged_log_is_refused_by_readers_and_writers_and_left_as_it_is(tmp_path: Path) -> None:
    """SQLite itself takes what is damaged for the end of the log."""
    path = killed(tmp_path, commits=8)
    log = tmp_path / "ledger.db-wal"
    data = bytearray(log.read_bytes())
    data[-4500] ^= 1  # in the last commit but one
    log.write_bytes(data)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    told = (
        r"(?s)from a copy.*--load .*ledger.db-wal: frame 16 is damaged; lost: 2 frames of 2 commits"
    )
    for open_it in (LedgerReader, Ledger, read_moment):
        with pytest.raises(StoreError, match=told):
            open_it(path)
        assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()} == before


def test_a_log_that_cannot_be_read_says_nothing_of_the_ledger(tmp_path: Path) -> None:
    path = killed(tmp_path, commits=1)
    (tmp_path / "ledger.db-wal").unlink()
    (tmp_path / "ledger.db-wal").mkdir()
    with pytest.raises(InfrastructureError, match=r"the log of .*ledger.db cannot be read"):
        LedgerReader(path)


def test_a_log_that_was_torn_is_read_to_its_last_whole_commit(tmp_path: Path) -> None:
    path = killed(tmp_path, commits=8)
    log = tmp_path / "ledger.db-wal"
    log.write_bytes(log.read_bytes()[:-1])
    with LedgerReader(path) as ledger:
        assert ledger.load().minted == 7
    with Ledger(path) as ledger:
        assert ledger.load().minted == 7


def test_files_of_a_ledger_are_the_user_s_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([Mark("a", 1)])
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600}


def test_groups_are_for_training(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([GroupRow(mint=1, task=Task("a", {}), size=1, cursor=1)])
    db = sqlite3.connect(tmp_path / "ledger.db")
    assert db.execute("SELECT mint, kind FROM groups").fetchall() == [(1, "train")]
    db.close()


def test_payload_refs_survive_the_ledger_bit_for_bit(tmp_path: Path) -> None:
    ref = PayloadRef("buffer", 7, 2**40, 15, 2**64 - 1)
    line = StoredTrajectory(TrajectoryMeta(1, 1, 1, 0.5, [(1, 1)]), ref)
    group = GroupRow(1, Task("a", {"q": ["x", 1]}), 1, 1)
    episode = EpisodeRow(1, 0, outcome=Outcome.DONE, trajectories=(line,))
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([group, episode])
        state = ledger.load()
    assert (state.groups, state.episodes) == ((group,), (episode,))
