"""The ledger on disk: SQLite in WAL mode, synchronous=FULL, one writer, one commit per batch.

The only importer of sqlite3. The last write of a key wins; a commit holds all rows of its batch or
none. Refused: a network file system (SQLite's locks and fsync mean nothing there), a ledger of
another schema, one with a damaged log, page or row, and a second process on the same ledger.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from agentrl import disk
from agentrl.buffer.rows import (
    EpisodeRow,
    GroupRow,
    LeaseRow,
    LedgerState,
    Mark,
    PacingRow,
    PeerRow,
    Row,
    SegmentUse,
    StoredTrajectory,
)
from agentrl.buffer.tables import SCHEMA, TABLES, LedgerTable, Line, lines_of, read_line
from agentrl.buffer.wal import read_damage
from agentrl.config.local_disk import refuse_network_file_system
from agentrl.errors import EnvironmentSetupError, InfrastructureError, StoreError
from agentrl.paths import kind_of
from agentrl.types import Fate, VersionRow
from agentrl.visible import visible

__all__ = [
    "SCHEMA_VERSION",
    "Ledger",
    "LedgerReader",
    "refuse_waiting",
]

#: 1 had no digests. In 2 a trajectory had no optional columns and an episode no facts: its rows are
#: rows of 3 that lack these.
SCHEMA_VERSION = 3
_READABLE = (2, 3)
#: No release comes near it: a greater number, or one below 0, is damage.
_MAX_SCHEMA = 999
#: Damaged places that an error lists.
_MAX_TOLD = 20

_OPEN_GROUPS = "WHERE state <> 'retired' ORDER BY mint"
_OF_OPEN_GROUPS = "WHERE mint IN (SELECT mint FROM groups WHERE state <> 'retired')"
_SEGMENTS = """
SELECT segment, sum(bytes), sum(state <> 'retired') AS live
FROM trajectories JOIN groups USING(mint) GROUP BY segment
"""
_SAMPLED = "SELECT sum(json_extract(row, '$.meta.num_sampled')) FROM trajectories"
#: The last group of each task (a cursor names one), where that was given up for its age.
_STALE = """
WHERE mint IN (SELECT max(mint) FROM groups GROUP BY cursor) AND fate IN ('stale', 'surplus')
ORDER BY mint
"""
#: What reading a damaged file may raise: Python decodes the names of tables and columns, and makes
#: room for what a length promises.
_UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)
T = TypeVar("T")


def refuse_waiting(path: Path) -> None:
    """Raise StoreError when the ledger or its log is what would be waited for, such as a FIFO."""
    for file in (path, _beside(path, "-wal")):
        if (kind := kind_of(file)) in ("a FIFO", "a socket", "a device"):
            raise StoreError(f"{file} is {kind}, not a ledger")


class LedgerReader:
    """`with LedgerReader(path) as ledger`: one moment of a ledger, of which no byte is changed.

    One thread at a time may use it.
    """

    def __init__(self, path: Path) -> None:
        """Raises StoreError (no ledger, another schema, a damaged log), EnvironmentSetupError (in
        use), or InfrastructureError for a disk that fails."""
        self.path = path
        refuse_waiting(path)
        _refuse_damaged_log(path)
        with _explaining(path):
            self._db = self._connect()
        try:
            with _explaining(path):
                self._open()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def damage(self) -> list[str]:
        """Damaged pages, then damaged rows with what is lost with each."""
        return [*self._damaged_pages(), *self._damaged_rows()]

    def load(self) -> LedgerState:
        """What a restart needs. StoreError when a page or a row is damaged, one that a restart does
        not need too; it says which, and what is lost."""
        with _explaining(self.path):
            if damage := self.damage():
                raise StoreError(_told(self.path, damage))
            return self._load()

    def load_all(self) -> LedgerState:
        """Every row ever written, retired ones too, for the audit. StoreError as in `load`."""
        with _explaining(self.path):
            return msgspec.structs.replace(
                self.load(),
                groups=tuple(self._rows(GroupRow, "ORDER BY mint")),
                episodes=self._episodes(""),
                leases=tuple(self._rows(LeaseRow, "ORDER BY number")),
            )

    def contradictions(self) -> list[str]:
        """Rows whose columns say something else than the row itself; for the audit."""
        with _explaining(self.path):
            return [line for table in TABLES.values() for line in self._contradictions(table)]

    # ---- inside ----

    def _load(self) -> LedgerState:
        marks = tuple(self._rows(Mark))
        known = {mark.key: mark.value for mark in marks}
        done_with = min(known.get("published_through", 0), known.get("retired_through", 0))
        ((minted, cursor),) = self._db.execute("SELECT max(mint), max(cursor) FROM groups")
        ((sampled,),) = self._db.execute(_SAMPLED)
        ((last_lease,),) = self._db.execute("SELECT max(number) FROM leases")
        fates = self._db.execute("SELECT fate, count(*) FROM groups WHERE fate NOTNULL GROUP BY 1")
        return LedgerState(
            groups=tuple(self._rows(GroupRow, _OPEN_GROUPS)),
            episodes=self._episodes(_OF_OPEN_GROUPS),
            leases=tuple(self._rows(LeaseRow, f"WHERE number > {done_with} ORDER BY number")),
            versions=tuple(self._rows(VersionRow, "ORDER BY version")),
            pacing=next(self._rows(PacingRow), None),
            peers=tuple(self._rows(PeerRow, "ORDER BY epoch")),
            marks=marks,
            fates={Fate(fate): count for fate, count in fates},
            minted=minted or 0,
            cursor=cursor or 0,
            total_sampled_tokens=sampled or 0,
            last_lease=last_lease or 0,
            segments=self._segments(),
            stale=tuple(self._rows(GroupRow, _STALE)),
        )

    def _connect(self) -> sqlite3.Connection:
        # Without a write-ahead log nobody has the ledger open and all of it is in one file, which
        # SQLite then reads without touching anything beside it, even in a read-only folder.
        whole = not _beside(self.path, "-wal").exists()
        self._has_index = _beside(self.path, "-shm").exists()
        uri = f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if whole else ''}"
        return _with_any_text(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1.0))

    def _open(self) -> None:
        self._db.execute("BEGIN")  # every query sees the same moment
        if self._schema() == 0:
            raise StoreError(f"{self.path} holds no ledger: no buffer has ever opened it")

    def _schema(self) -> int:
        """The ledger's schema version, 0 when it is empty; StoreError for that of others, and for a
        number that is none."""
        ((found,),) = self._db.execute("PRAGMA user_version")
        if not 0 <= found <= _MAX_SCHEMA:
            raise StoreError(_told(self.path, [f"its header: {found} is the schema of no agentrl"]))
        if found not in (0, *_READABLE):
            raise StoreError(
                f"{self.path} has schema {found}, this agentrl writes {SCHEMA_VERSION}: finish the"
                f" run with the version that wrote it, or take its weights into a new one with"
                f" --load {self.path.parent}"
            )
        return int(found)

    def _close(self) -> None:
        self._db.close()
        if not self._has_index:
            # SQLite has put an index of the log there to read it, and leaves it behind.
            _beside(self.path, "-shm").unlink(missing_ok=True)

    def _damaged_pages(self) -> list[str]:
        try:
            lines = [line for (line,) in self._db.execute(f"PRAGMA quick_check({_MAX_TOLD})")]
        except _UNREADABLE as error:
            _raise_for_disk(self.path, error)
            lines = [str(error)]
        return [" ".join(f"a page: {line}".split()) for line in lines if line != "ok"]

    def _damaged_rows(self) -> Iterator[str]:
        for kind, table in TABLES.items():
            try:
                for line in self._lines(table):
                    try:
                        read_line(kind, line)
                    except StoreError as error:
                        yield str(error)
            except _UNREADABLE as error:
                _raise_for_disk(self.path, error)
                yield f"{table.name} cannot be read to its end: {error}; lost: the rows after that"

    def _contradictions(self, table: LedgerTable) -> Iterator[str]:
        if table.kind is StoredTrajectory:  # it does not say whose it is
            return
        for line in self._lines(table):
            *_, (_, wanted) = lines_of(read_line(table.kind, line))
            if line[: len(table.columns)] != wanted[: len(table.columns)]:
                yield f"{table.name} {line[0]}: its columns contradict its row"

    def _rows(self, kind: type[T], clause: str = "") -> Iterator[T]:
        return (read_line(kind, line) for line in self._lines(TABLES[kind], clause))

    def _lines(self, table: LedgerTable, clause: str = "") -> Iterator[Line]:
        columns = ", ".join((*table.columns, "row", "digest"))
        return self._db.execute(f"SELECT {columns} FROM {table.name} {clause}")  # noqa: S608

    def _episodes(self, where: str) -> tuple[EpisodeRow, ...]:
        stored: dict[tuple[int, int], list[StoredTrajectory]] = {}
        table = TABLES[StoredTrajectory]
        for line in self._lines(table, f"{where} ORDER BY mint, idx, position"):
            stored.setdefault((line[0], line[1]), []).append(read_line(StoredTrajectory, line))
        return tuple(
            msgspec.structs.replace(row, trajectories=tuple(stored.get((row.mint, row.index), ())))
            for row in self._rows(EpisodeRow, f"{where} ORDER BY mint, idx")
        )

    def _segments(self) -> dict[int, SegmentUse]:
        lines = self._db.execute(_SEGMENTS)
        return {segment: SegmentUse(num_bytes, live) for segment, num_bytes, live in lines}


class Ledger(LedgerReader):
    """`with Ledger(path) as ledger`: the one writer. One thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        """Raises EnvironmentSetupError (network file system, in use) or StoreError (schema, a
        damaged log)."""
        super().__init__(path)

    def commit(self, rows: Iterable[Row]) -> None:
        """Write rows in order, all or none; durable when this returns."""
        self._db.execute("BEGIN")
        try:
            for row in rows:
                self._write(row)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # ---- inside ----

    def _connect(self) -> sqlite3.Connection:
        refuse_network_file_system(self.path)
        disk.make_folder(self.path.parent, 0o700)
        if not self.path.exists():  # SQLite gives its log the mode of this file
            disk.create_file(self.path, 0o600).close()
        return _with_any_text(
            sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        )

    def _open(self) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        found = self._schema()
        if found != SCHEMA_VERSION:
            tables = SCHEMA if found == 0 else ""
            version = f"PRAGMA user_version={SCHEMA_VERSION};"
            self._db.executescript(f"BEGIN EXCLUSIVE; {tables} {version} COMMIT;")

    def _close(self) -> None:
        self._db.close()

    def _write(self, row: Row) -> None:
        for table, line in lines_of(row):
            columns = ", ".join((*table.columns, "row", "digest"))
            marks = ",".join("?" * len(line))
            self._db.execute(
                f"REPLACE INTO {table.name}({columns}) VALUES ({marks})",  # noqa: S608
                line,
            )


def _told(path: Path, damage: list[str]) -> str:
    """The error of a damaged ledger. What the damage made of a text is no text for a terminal."""
    shown = "".join(f"\n    {visible(line)}" for line in damage[:_MAX_TOLD])
    more = f"\n    and {len(damage) - _MAX_TOLD} more" if len(damage) > _MAX_TOLD else ""
    return (
        f"{path} is damaged in {len(damage)} {'place' if len(damage) == 1 else 'places'}; bring it"
        f" back from a copy, or take the run's weights into a new one with --load {path.parent}:"
        f"{shown}{more}"
    )


def _refuse_damaged_log(path: Path) -> None:
    """Before SQLite opens it: a writer would move what it takes of the log to the ledger, and begin
    the log anew."""
    try:
        damage = read_damage(path)
    except OSError as error:
        raise InfrastructureError(f"the log of {path} cannot be read: {error}") from error
    if damage is not None:
        raise StoreError(_told(path, [f"{_beside(path, '-wal').name}: {damage}"]))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _with_any_text(db: sqlite3.Connection) -> sqlite3.Connection:
    """Bytes that are no text are damage: the digest finds it, and SQLite would not say where."""
    db.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return db


def _raise_for_disk(path: Path, error: Exception) -> None:
    """Raise InfrastructureError for a disk that is full or fails: the ledger may be whole."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR"):
        raise InfrastructureError(f"the disk of {path} fails ({name}): {error}") from error


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except _UNREADABLE as error:
        raise _explained(path, error) from error


def _explained(path: Path, error: Exception) -> Exception:
    _raise_for_disk(path, error)
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return EnvironmentSetupError(
            f"{path} is in use by another buffer: wait for that run to end, stop it, or choose"
            " another run id"
        )
    return StoreError(f"{path} is no readable ledger: {error}")
