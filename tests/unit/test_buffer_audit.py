"""The audit: finds every planted damage in what a run left, and changes no byte of it."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from agentrl.buffer import audit
from agentrl.buffer.ledger import Ledger, LedgerReader
from agentrl.buffer.rows import Mark, PeerRow
from agentrl.errors import EnvironmentSetupError, StoreError
from agentrl.types import Fate
from tests.unit.buffer_runs import rewrite, trained_run


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_audit_of_a_sound_run_is_clean(tmp_path: Path) -> None:
    trained_run(tmp_path)
    report = audit(tmp_path)
    assert report.problems == ()
    assert (report.minted, report.open, report.fates) == (3, 2, {Fate.TRAINED: 1})
    assert report.payloads_checked == 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM groups WHERE mint = 2", "mint numbers have a gap"),
        ("DELETE FROM leases WHERE number = 1", "lease numbers have a gap"),
        ("UPDATE groups SET fate = 'stale' WHERE mint = 2", "columns contradict its row"),
        ("UPDATE groups SET fate = NULL, row = json_set(row, '$.fate', NULL)", "with fate None"),
        ("UPDATE leases SET row = json_set(row, '$.mints', json('[1]'))", "is in lease 1 and in"),
        ("UPDATE leases SET row = json_set(row, '$.mints', json('[]'))", "lease 1 was given up"),
        (
            "UPDATE leases SET row = json_set(row, '$.given_up', json('[3]')) WHERE number = 2",
            "was given up with lease 2 and is not poison",
        ),
        ("UPDATE groups SET row = json_set(row, '$.rewards', json('[]'))", "0 rewards for 1"),
        ("UPDATE groups SET cursor = 1, row = json_set(row, '$.cursor', 1)", "was minted before"),
        (
            "UPDATE groups SET row = json_set(row, '$.repeat', 1) WHERE mint = 3",
            "was minted before",
        ),
        ("DELETE FROM episodes WHERE mint = 3", "has 0 episodes of 1"),
        ("DELETE FROM versions", "names unknown versions [1]"),
        ("DELETE FROM trajectories", "is done and has no trajectory"),
        (
            "UPDATE trajectories SET row = json_set(row, '$.payload[2]', 0)",
            "share bytes of segment 1",
        ),
        (
            "UPDATE trajectories SET row = json_set(row, '$.payload[4]', 1) WHERE mint = 2",
            "is damaged",
        ),
    ],
)
def test_the_audit_finds_planted_damage(tmp_path: Path, damage: str, problem: str) -> None:
    trained_run(tmp_path)
    rewrite(tmp_path / "ledger.db", damage)
    assert any(problem in found for found in audit(tmp_path).problems)


def test_the_audit_finds_a_missing_segment_and_a_missing_ledger(tmp_path: Path) -> None:
    trained_run(tmp_path)
    (tmp_path / "payload" / "00000001.seg").unlink()
    assert any("cannot be read" in found for found in audit(tmp_path).problems)
    with pytest.raises(StoreError, match=r"has no ledger\.db"):
        audit(tmp_path / "nowhere")


def test_a_ledger_that_lacks_a_table_is_a_store_error(tmp_path: Path) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("DROP TABLE marks")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="no such table: marks"):
        audit(tmp_path)


def test_rows_that_are_no_rows_are_named_one_by_one(tmp_path: Path) -> None:
    trained_run(tmp_path)
    rewrite(tmp_path / "ledger.db", "UPDATE groups SET row = '{' WHERE mint < 3")
    with pytest.raises(StoreError, match=r"damaged in 2 places.*(\n.*groups.*no such row.*){2}"):
        audit(tmp_path)


@pytest.mark.parametrize(
    ("damage", "where", "lost"),
    [
        (
            "UPDATE groups SET row = replace(row, '0.0', '8.0') WHERE mint = 2",
            "groups, row with mint 2",
            "the task, state, fate and rewards of group 00000002",
        ),
        ("UPDATE groups SET fate = 'stale' WHERE mint = 1", "groups, row with mint 1", "group"),
        ("UPDATE groups SET kind = 'trail' WHERE mint = 1", "groups, row with mint 1", "group"),
        ("UPDATE groups SET mint = 7 WHERE mint = 3", "groups, row with mint 7", "00000007"),
        (
            "UPDATE episodes SET row = replace(row, '0.0', '9.0') WHERE mint = 2",
            "episodes, row with mint 2, idx 0",
            "how episode 00000002/0 stands",
        ),
        (
            "UPDATE episodes SET row = CAST(x'7bff7d' AS TEXT) WHERE mint = 2",
            "episodes, row with mint 2, idx 0",
            "how episode 00000002/0 stands",
        ),
        ("UPDATE episodes SET worker = 5", "episodes, row with mint 1, idx 0", "episode"),
        (
            "UPDATE trajectories SET segment = 2 WHERE mint = 1",
            "trajectories, row with mint 1, idx 0, position 0",
            "where the tokens of episode 00000001/0 lie",
        ),
        ("UPDATE leases SET digest = digest + 1", "leases, row with number 1", "lease 1"),
        ("UPDATE marks SET key = 'x'", "marks, row with key 'x'", "the number of x"),
        (
            "UPDATE marks SET key = CAST(x'1be1' AS TEXT)",
            r"marks, row with key '\x1b\udce1'",
            "the number of \u241b<U+DCE1>",
        ),
    ],
)
def test_a_damaged_row_is_named_with_what_is_lost(
    tmp_path: Path, damage: str, where: str, lost: str
) -> None:
    trained_run(tmp_path)
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(StoreError) as error:
        audit(tmp_path)
    assert where in str(error.value)
    assert lost in str(error.value)
    assert f"--load {tmp_path}" in str(error.value)
    with Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(StoreError, match="is damaged in"):
        ledger.load()


def test_a_row_that_its_page_has_forgotten_is_told(tmp_path: Path) -> None:
    """No digest is left that could tell of it."""
    trained_run(tmp_path)
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.commit([PeerRow(epoch, f"worker-{epoch}", "worker", "i") for epoch in (1, 2)])
    db = sqlite3.connect(path)
    ((page,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'peers'")
    ((page_bytes,),) = db.execute("PRAGMA page_size")
    db.close()
    data = bytearray(path.read_bytes())
    cells = slice((page - 1) * page_bytes + 3, (page - 1) * page_bytes + 5)
    assert data[cells] == b"\0\2"
    data[cells] = b"\0\1"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"is damaged in 1 place; .*\n.*a page: "):
        audit(tmp_path)


def test_the_audit_of_an_empty_file_is_refused_and_leaves_it_empty(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(StoreError, match="holds no ledger"):
        audit(tmp_path)
    assert files(tmp_path) == {str(path): b""}


def test_an_audit_changes_no_byte_and_leaves_no_file(tmp_path: Path) -> None:
    trained_run(tmp_path)
    before = files(tmp_path)
    assert audit(tmp_path).clean
    assert files(tmp_path) == before


def test_an_audit_reads_what_a_killed_buffer_left_in_its_log(tmp_path: Path) -> None:
    trained_run(tmp_path / "run")
    with Ledger(tmp_path / "run" / "ledger.db") as ledger:
        ledger.commit([Mark("late", 1)])
        shutil.copytree(tmp_path / "run", tmp_path / "killed")
    before = files(tmp_path / "killed")
    assert any(name.endswith("-wal") and content for name, content in before.items())
    with LedgerReader(tmp_path / "killed" / "ledger.db") as reader:
        assert Mark("late", 1) in reader.load_all().marks
    assert audit(tmp_path / "killed").clean
    assert files(tmp_path / "killed") == before


def test_an_audit_beside_a_running_buffer_says_so(tmp_path: Path) -> None:
    trained_run(tmp_path)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit([Mark("a", 1)])
        with pytest.raises(EnvironmentSetupError, match=r"is still going on, and only .* ended"):
            audit(tmp_path)
        ledger.commit([Mark("a", 2)])
