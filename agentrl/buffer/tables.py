"""The tables of the ledger, and rows as lines of them.

    a line    the columns that SQL asks for (the key first) | the row as JSON | the digest

The digest is the xxh3 of the table's name, the columns and the JSON, so that no bit of a line can
change unseen, nor a line pass for another. Refused: a line whose digest is not that of what it
holds, and one that is no such row.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import xxhash

from agentrl.buffer.ids import group_id
from agentrl.buffer.rows import (
    EpisodeRow,
    GroupRow,
    LeaseRow,
    Mark,
    PacingRow,
    PeerRow,
    Row,
    StoredTrajectory,
)
from agentrl.errors import StoreError
from agentrl.types import VersionRow

__all__ = ["SCHEMA", "TABLES", "LedgerTable", "Line", "digest", "lines_of", "read_line"]

#: `kind` says what a group is for. All groups of this schema are for training.
SCHEMA = """
CREATE TABLE groups(mint INTEGER PRIMARY KEY, kind TEXT NOT NULL DEFAULT 'train',
    cursor INTEGER NOT NULL, state TEXT NOT NULL, fate TEXT, lease INTEGER,
    row TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE episodes(mint INTEGER REFERENCES groups, idx INTEGER, worker TEXT, outcome TEXT,
    row TEXT NOT NULL, digest INTEGER NOT NULL, PRIMARY KEY(mint, idx)) WITHOUT ROWID;
CREATE TABLE trajectories(mint INTEGER, idx INTEGER, position INTEGER, segment INTEGER NOT NULL,
    bytes INTEGER NOT NULL, row TEXT NOT NULL, digest INTEGER NOT NULL,
    PRIMARY KEY(mint, idx, position)) WITHOUT ROWID;
CREATE TABLE leases(number INTEGER PRIMARY KEY, row TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE versions(version INTEGER PRIMARY KEY, row TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE pacing(id INTEGER PRIMARY KEY CHECK(id = 0), row TEXT NOT NULL,
    digest INTEGER NOT NULL);
CREATE TABLE peers(epoch INTEGER PRIMARY KEY, row TEXT NOT NULL, digest INTEGER NOT NULL);
CREATE TABLE marks(key TEXT PRIMARY KEY, row TEXT NOT NULL, digest INTEGER NOT NULL) WITHOUT ROWID;
"""

_TRAIN = "train"

#: Columns, JSON, digest; of whatever types the disk says.
Line = tuple[Any, ...]


class LedgerTable(msgspec.Struct, frozen=True):
    """`num_keys`: so many of the columns, the first ones, are the key. `lost`: what is lost with a
    line, of which the key fills the gaps."""

    name: str
    kind: type[Any]
    columns: tuple[str, ...]
    num_keys: int
    lost: str


_ALL = (
    LedgerTable(
        "groups",
        GroupRow,
        ("mint", "kind", "cursor", "state", "fate", "lease"),
        1,
        "the task, state, fate and rewards of group {}",
    ),
    LedgerTable(
        "episodes",
        EpisodeRow,
        ("mint", "idx", "worker", "outcome"),
        2,
        "how episode {}/{} stands or ended",
    ),
    LedgerTable(
        "trajectories",
        StoredTrajectory,
        ("mint", "idx", "position", "segment", "bytes"),
        3,
        "where the tokens of episode {}/{} lie (trajectory {})",
    ),
    LedgerTable(
        "leases",
        LeaseRow,
        ("number",),
        1,
        "which groups lease {} has, and whether it was trained on",
    ),
    LedgerTable(
        "versions",
        VersionRow,
        ("version",),
        1,
        "what version {} of the weights contains",
    ),
    LedgerTable("pacing", PacingRow, ("id",), 1, "how many groups may be minted ahead"),
    LedgerTable("peers", PeerRow, ("epoch",), 1, "which process has epoch {}"),
    LedgerTable("marks", Mark, ("key",), 1, "the number of {}"),
)
TABLES: dict[type[Any], LedgerTable] = {table.kind: table for table in _ALL}

_to_json = msgspec.json.Encoder().encode
_decoders = {table.kind: msgspec.json.Decoder(table.kind) for table in _ALL}
T = TypeVar("T")


def lines_of(row: Row) -> Iterator[tuple[LedgerTable, Line]]:
    """The lines that stand for `row`; an episode has one for each of its trajectories too."""
    columns: Line = ()
    match row:
        case GroupRow():
            columns = (row.mint, _TRAIN, row.cursor, row.state, row.fate, row.lease)
        case EpisodeRow():
            for position, stored in enumerate(row.trajectories):
                ref = stored.payload
                key = (row.mint, row.index, position)
                yield _line(StoredTrajectory, (*key, ref.segment, ref.num_bytes), stored)
            columns = (row.mint, row.index, row.worker, row.outcome)
            row = msgspec.structs.replace(row, trajectories=())
        case PacingRow():
            columns = (0,)
        case _:
            columns = tuple(getattr(row, field) for field in TABLES[type(row)].columns)
    yield _line(type(row), columns, row)


def read_line(kind: type[T], line: Line) -> T:
    """The row of a line. StoreError for one that is damaged, with the table, the key and what is
    lost with it."""
    table = TABLES[kind]
    *values, found = line
    wanted = digest(table.name, values)
    if found != wanted:
        raise StoreError(_damaged(table, line, "its digest is not that of what it holds"))
    try:
        row: T = _decoders[kind].decode(values[-1])
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(_damaged(table, line, f"it is no such row: {error}")) from error
    return row


def digest(table: str, values: Line | list[Any]) -> int:
    """The xxh3 of a line, as SQLite holds a number of 64 bits."""
    parts = [table.encode()]
    for value in values:
        match value:
            case str():
                part = b"t" + value.encode("utf-8", "surrogateescape")
            case bytes():
                part = b"b" + value
            case _:
                part = b"%r" % (value,)
        parts += (b"%d:" % len(part), part)
    number: int = xxhash.xxh3_64_intdigest(b"".join(parts))
    return number - (1 << 64) if number >> 63 else number


def _line(kind: type[Any], columns: Line, row: object) -> tuple[LedgerTable, Line]:
    table = TABLES[kind]
    values = (*columns, _to_json(row))
    return table, (*values, digest(table.name, values))


def _damaged(table: LedgerTable, line: Line, why: str) -> str:
    key = line[: table.num_keys]
    names = [group_id(each) if _is_mint(table, at, each) else each for at, each in enumerate(key)]
    where = ", ".join(f"{c} {v!r}" for c, v in zip(table.columns, key, strict=False))
    return f"{table.name}, row with {where}: {why}; lost: {table.lost.format(*names)}"


def _is_mint(table: LedgerTable, position: int, value: object) -> bool:
    return table.columns[position] == "mint" and isinstance(value, int)
