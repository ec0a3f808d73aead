"""The ledger on disk: SQLite in WAL mode, synchronous=FULL, one writer, one commit per batch.

The only importer of sqlite3. A row is stored as JSON beside the columns that SQL asks for, and the
last write of a key wins. A commit holds all rows of its batch or none. Refused: a network file
system (SQLite's locks and fsync mean nothing there), a ledger of another schema, and a second
process on the same ledger.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

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
from agentrl.errors import EnvironmentSetupError, StoreError
from agentrl.types import Fate, VersionRow

__all__ = ["SCHEMA_VERSION", "Ledger", "LedgerReader", "refuse_network_file_system"]

SCHEMA_VERSION = 1

#: File systems without the locks and the fsync that a ledger needs.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs"}
    | {"afs", "9p", "orangefs", "wekafs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs"}
    | {"fuse.gcsfuse", "fuse.juicefs"}
)

#: Where a row goes and which of its fields are columns; the first ones are the key.
_TABLES: dict[type[Row], tuple[str, tuple[str, ...]]] = {
    GroupRow: ("groups", ("mint", "cursor", "state", "fate", "lease")),
    EpisodeRow: ("episodes", ("mint", "index", "worker", "outcome")),
    LeaseRow: ("leases", ("number",)),
    VersionRow: ("versions", ("version",)),
    PacingRow: ("pacing", ()),
    PeerRow: ("peers", ("epoch",)),
    Mark: ("marks", ("key",)),
}

_SCHEMA = """
CREATE TABLE groups(mint INTEGER PRIMARY KEY, cursor INTEGER NOT NULL, state TEXT NOT NULL,
    fate TEXT, lease INTEGER, row TEXT NOT NULL);
CREATE INDEX open_groups ON groups(state) WHERE state <> 'retired';
CREATE TABLE episodes(mint INTEGER REFERENCES groups, idx INTEGER, worker TEXT, outcome TEXT,
    row TEXT NOT NULL, PRIMARY KEY(mint, idx)) WITHOUT ROWID;
CREATE TABLE trajectories(mint INTEGER, idx INTEGER, position INTEGER, segment INTEGER NOT NULL,
    bytes INTEGER NOT NULL, row TEXT NOT NULL, PRIMARY KEY(mint, idx, position)) WITHOUT ROWID;
CREATE TABLE leases(number INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE versions(version INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE pacing(id INTEGER PRIMARY KEY CHECK(id = 0) DEFAULT 0, row TEXT NOT NULL);
CREATE TABLE peers(epoch INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE marks(key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID;
"""

_OPEN_GROUPS = "WHERE state <> 'retired' ORDER BY mint"
_OF_OPEN_GROUPS = "WHERE mint IN (SELECT mint FROM groups WHERE state <> 'retired')"
_SEGMENTS = """
SELECT segment, sum(bytes), sum(state <> 'retired') AS live
FROM trajectories JOIN groups USING(mint) GROUP BY segment
"""
#: The last group of each task (a cursor names one), where it became stale.
_STALE = """
SELECT row FROM (SELECT row, fate, max(mint) AS mint FROM groups GROUP BY cursor)
WHERE fate = 'stale' ORDER BY mint
"""
_to_json = msgspec.json.Encoder().encode
T = TypeVar("T")


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """Raise EnvironmentSetupError when `path` lies on a network file system.

    `mounts`: the text of /proc/mounts; read when None, and nothing is refused where it is absent.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
    target = path.resolve()
    best = ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    if best[1] in _NETWORK:
        raise EnvironmentSetupError(
            f"{target} lies on {best[0]}, a network file system ({best[1]}): a ledger needs a local"
            " disk, choose another --run-dir"
        )


class LedgerReader:
    """`with LedgerReader(path) as ledger`: one moment of a ledger, of which no byte is changed.

    One thread at a time may use it.
    """

    def __init__(self, path: Path) -> None:
        """Raises StoreError (no ledger, another schema) or EnvironmentSetupError (in use)."""
        self.path = path
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def load(self) -> LedgerState:
        """What a restart needs."""
        marks = tuple(self._rows(Mark))
        known = {mark.key: mark.value for mark in marks}
        done_with = min(known.get("published_through", 0), known.get("retired_through", 0))
        ((minted, cursor),) = self._db.execute("SELECT max(mint), max(cursor) FROM groups")
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
            last_lease=last_lease or 0,
            segments=self._segments(),
            stale=tuple(self._decoded(GroupRow, _STALE)),
        )

    def load_all(self) -> LedgerState:
        """Every row ever written, retired ones too; for the audit."""
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
            return [line for kind in _TABLES for line in self._contradictions(kind)]

    # ---- inside ----

    def _connect(self) -> sqlite3.Connection:
        # Without a write-ahead log nobody has the ledger open and all of it is in one file, which
        # SQLite then reads without touching anything beside it, even in a read-only folder.
        whole = not _beside(self.path, "-wal").exists()
        self._has_index = _beside(self.path, "-shm").exists()
        uri = f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if whole else ''}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=1.0)

    def _open(self) -> None:
        self._db.execute("BEGIN")  # every query sees the same moment
        if self._schema() == 0:
            raise StoreError(f"{self.path} holds no ledger: no buffer has ever opened it")

    def _schema(self) -> int:
        """The ledger's schema version, 0 when it is empty; StoreError for that of others."""
        ((found,),) = self._db.execute("PRAGMA user_version")
        if found not in (0, SCHEMA_VERSION):
            raise StoreError(
                f"{self.path} has schema {found}, this agentrl writes {SCHEMA_VERSION}: resume with"
                " the version that made it, or begin a new run"
            )
        return int(found)

    def _close(self) -> None:
        self._db.close()
        if not self._has_index:
            # SQLite has put an index of the log there to read it, and leaves it behind.
            _beside(self.path, "-shm").unlink(missing_ok=True)

    def _contradictions(self, kind: type[Row]) -> Iterator[str]:
        table, fields = _TABLES[kind]
        decode = msgspec.json.Decoder(kind).decode
        for *columns, text in self._db.execute(f"SELECT * FROM {table}"):  # noqa: S608
            row = decode(text)
            if fields and columns != [getattr(row, field) for field in fields]:
                yield f"{table} {columns[0]}: its columns contradict its row"

    def _rows(self, kind: type[T], clause: str = "") -> Iterator[T]:
        table, _ = _TABLES[kind]  # type: ignore[index]
        return self._decoded(kind, f"SELECT row FROM {table} {clause}")  # noqa: S608

    def _decoded(self, kind: type[T], query: str) -> Iterator[T]:
        decode = msgspec.json.Decoder(kind).decode
        for (text,) in self._db.execute(query):
            try:
                yield decode(text)
            except msgspec.MsgspecError as error:
                table, _ = _TABLES[kind]  # type: ignore[index]
                raise StoreError(
                    f"a row of {table} in {self.path} cannot be read: {error}"
                ) from error

    def _episodes(self, where: str) -> tuple[EpisodeRow, ...]:
        decode = msgspec.json.Decoder(StoredTrajectory).decode
        stored: dict[tuple[int, int], list[StoredTrajectory]] = {}
        for mint, index, text in self._db.execute(
            f"SELECT mint, idx, row FROM trajectories {where} ORDER BY mint, idx, position"  # noqa: S608
        ):
            stored.setdefault((mint, index), []).append(decode(text))
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
        """Raises EnvironmentSetupError (network file system, in use) or StoreError (schema)."""
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
        return sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=1.0
        )

    def _open(self) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        if self._schema() == 0:
            version = f"PRAGMA user_version={SCHEMA_VERSION};"
            self._db.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} {version} COMMIT;")
            self.path.chmod(0o600)

    def _close(self) -> None:
        self._db.close()

    def _write(self, row: Row) -> None:
        table, fields = _TABLES[type(row)]
        if isinstance(row, EpisodeRow):
            for position, stored in enumerate(row.trajectories):
                ref = stored.payload
                key = (row.mint, row.index, position)
                self._replace("trajectories", (*key, ref.segment, ref.num_bytes, _to_json(stored)))
            row = msgspec.structs.replace(row, trajectories=())
        values = tuple(getattr(row, field) for field in fields) or (0,)
        self._replace(table, (*values, _to_json(row)))

    def _replace(self, table: str, values: tuple[Any, ...]) -> None:
        marks = ",".join("?" * len(values))
        self._db.execute(f"REPLACE INTO {table} VALUES ({marks})", values)  # noqa: S608


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _explained(path, error) from error


def _explained(path: Path, error: sqlite3.DatabaseError) -> Exception:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return EnvironmentSetupError(
            f"{path} is in use by another buffer: wait for that run to end, stop it, or choose"
            " another run id"
        )
    return StoreError(f"{path} is no readable ledger: {error}")
