"""What happened in a lab, in one file that every process of it appends to.

A line is a single write, so the lines of several processes never mix, and what a process wrote
before it was killed is there.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["FOLDER", "NAME", "Record", "note", "read"]

#: Environment of every process of a lab: its folder, and what the process is called.
FOLDER, NAME = "AGENTRL_LAB", "AGENTRL_LAB_NAME"


class Record(msgspec.Struct, frozen=True):
    """`who` did or suffered `what`; `at` in seconds on the machine's monotonic clock."""

    at: float
    who: str
    what: str
    data: dict[str, Any] = {}


def _file(folder: Path) -> Path:
    return folder / "history.jsonl"


def note(what: str, *, who: str | None = None, folder: Path | None = None, **data: Any) -> None:
    """Append a line. Inside a process of a lab the environment says who and where."""
    record = Record(time.monotonic(), who or os.environ[NAME], what, data)
    line = msgspec.json.encode(record) + b"\n"
    path = _file(folder or Path(os.environ[FOLDER]))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        written = os.write(handle, line)
        assert written == len(line)
    finally:
        os.close(handle)


def read(folder: Path, what: str | None = None) -> list[Record]:
    """All lines so far, or those that say `what`. The last one may be cut: it is left out."""
    try:
        data = _file(folder).read_bytes()
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if what is not None:
        mark = b'"what":"%s"' % what.encode()
        lines = [line for line in lines if mark in line]
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    return [record for record in records if what in (None, record.what)]
