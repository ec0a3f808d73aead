"""Write-ahead logs that SQLite wrote, damaged and torn: damage is told, and nothing else is."""

import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agentrl.buffer.wal import find_damage

PAGE, FRAME, SECTOR = 512, 536, 512


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """As the buffer opens its ledger, and it moves nothing from the log by itself."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size={PAGE}")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        db.execute("CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, v BLOB)")
        yield db


def write(db: sqlite3.Connection, chance: random.Random) -> None:
    """One transaction, of one frame or several."""
    db.execute("BEGIN")
    for _ in range(chance.randrange(1, 6)):
        value = chance.randbytes(chance.choice([10, 300, 900]))
        db.execute("REPLACE INTO t VALUES (?, ?)", (chance.randrange(30), value))
    db.execute("COMMIT")


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def is_told(wal: bytes, database: bytes) -> bool:
    return find_damage(wal, lambda n, size: database[(n - 1) * size : n * size]) is not None


def rows_of(wal: bytes, database: bytes) -> list[tuple[int, bytes]] | None:
    """What SQLite gives of them, None for an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        path.write_bytes(database)
        log_of(path).write_bytes(wal)
        with closing(sqlite3.connect(path)) as db:
            try:
                return db.execute("SELECT k, v FROM t ORDER BY k").fetchall()
            except sqlite3.Error:
                return None


def commits_of(wal: bytes) -> list[int]:
    """Frames of a whole log with a commit mark, counted from 0."""
    count = (len(wal) - 32) // FRAME
    return [i for i in range(count) if any(wal[32 + i * FRAME + 4 : 32 + i * FRAME + 8])]


def is_mark_unsure(wal: bytes, at: int) -> bool:
    """Whether damage to a byte may hide that its frame is a commit: its checksum is wrong then, and
    the mark itself is hit, or the header lies across sectors, as two in 64 do."""
    frame, place = divmod(at - 32, FRAME)
    lies_across = (32 + frame * FRAME) % SECTOR > SECTOR - 24
    return frame in commits_of(wal) and (lies_across or place in range(4, 8))


@pytest.fixture(scope="module", params=[1, 2])
def written(request: pytest.FixtureRequest) -> tuple[bytes, bytes]:
    """A log of several commits that nobody has closed, and the database beside it."""
    chance = random.Random(request.param)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "a.db") as db:
        for _ in range(5):
            write(db, chance)
        return log_of(Path(folder) / "a.db").read_bytes(), (Path(folder) / "a.db").read_bytes()


def test_a_flip_is_told_wherever_another_commit_is_behind_it(written: tuple[bytes, bytes]) -> None:
    wal, database = written
    assert not is_told(wal, database)
    *_, ends, _ = commits_of(wal)
    for at in range(len(wal)):
        frame = (at - 32) // FRAME
        if frame == ends and is_mark_unsure(wal, at):
            continue
        changed = bytearray(wal)
        changed[at] ^= 0xFF if at % 9 == 0 else 1 << at % 8
        told = is_told(bytes(changed), database)
        assert told or frame > ends, f"byte {at}, of frame {frame} (commits: {commits_of(wal)})"


def test_a_log_that_ends_anywhere_is_no_damage(written: tuple[bytes, bytes]) -> None:
    wal, database = written
    for size in range(len(wal)):
        assert not is_told(wal[:size], database)
        if size % 5 == 0:
            assert not is_told(wal[:size] + bytes(len(wal) - size), database)


def test_what_sqlite_would_lose_of_a_log_whose_header_is_gone_is_told(
    written: tuple[bytes, bytes],
) -> None:
    wal, database = written
    assert is_told(bytes(32) + wal[32:], database)
    assert rows_of(bytes(32) + wal[32:], database) != rows_of(wal, database)


def test_a_log_that_was_being_begun_anew_is_no_damage(tmp_path: Path) -> None:
    """Whatever is in its header, the database has all that stands behind that."""
    with opened(tmp_path / "a.db") as db:
        for number in range(5):
            write(db, random.Random(number))
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        before = log_of(tmp_path / "a.db").read_bytes()
        write(db, random.Random(5))
        after = log_of(tmp_path / "a.db").read_bytes()
        database = (tmp_path / "a.db").read_bytes()
    assert before[:32] != after[:32]
    for size in range(33):
        assert not is_told(after[:size] + before[size:], database)
        assert not is_told(bytes(size) + before[size:], database)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_power_cut_leaves_is_no_damage_and_a_flip_costs_the_last_commit_at_most(
    seed: int,
) -> None:
    """Power fails in a commit again and again: of its sectors any may be on the disk. What is left
    goes on each time, over the rest of what was torn; and the log may be begun anew."""
    chance = random.Random(seed)
    left: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for life in range(3):
            path = Path(folder) / str(life) / "a.db"
            path.parent.mkdir()
            for name, data in left.items():
                (path.parent / name).write_bytes(data)
            with opened(path) as db:
                for _ in range(chance.randrange(1, 5)):
                    write(db, chance)
                if chance.random() < 0.3:
                    db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                before, database = log_of(path).read_bytes(), path.read_bytes()
                write(db, chance)
                after = log_of(path).read_bytes()
            assert not is_told(after, database)
            flip_costs_the_last_commit_at_most(after, before, database, chance)
            left = {path.name: database, log_of(path).name: torn(before, after, chance)}
            assert not is_told(left[log_of(path).name], database)


def torn(before: bytes, after: bytes, chance: random.Random) -> bytes:
    """What a power cut may leave of a log in its last commit. A header that is new is synced before
    what stands behind it is written; it lies in one sector."""
    if before[:32] != after[:32] and chance.random() < 0.3:
        return chance.choice([before, after[:32] + before[32:]])
    left = bytearray(after[:32] + before[32:])
    for start in range(0, len(after), SECTOR):
        if chance.random() < 0.6:
            at = max(start, 32)
            left.extend(bytes(max(0, at - len(left))))
            left[at : start + SECTOR] = after[at : start + SECTOR]
    return bytes(left)


def flip_costs_the_last_commit_at_most(
    wal: bytes, before: bytes, database: bytes, chance: random.Random
) -> None:
    whole, without_last = rows_of(wal, database), rows_of(before, database)
    for _ in range(5):
        changed = bytearray(wal)
        at = chance.randrange(len(changed))
        if is_mark_unsure(wal, at):
            continue
        changed[at] ^= 1 << chance.randrange(8)
        if not is_told(bytes(changed), database):
            assert rows_of(bytes(changed), database) in (whole, without_last), at
