"""`run.json`: what a run says of itself to the program that continues it.

Its folder may be renamed, or reached by a link; its checkpoints know it by this id.
"""

from pathlib import Path

import msgspec

from agentrl.disk import read_json, replace_file

__all__ = ["RunRecord", "read_record", "write_record"]


class RunRecord(msgspec.Struct, frozen=True):
    """`private`: the folder of the sockets and secrets of the program that works on it; empty when
    none does. `files`: digests of the user's files that it was last started with. `token`: a mark
    that no other run has, by which it knows its own lock (`save_lock.py`)."""

    id: str
    private: str = ""
    files: dict[str, str] = {}
    token: str = ""


def read_record(run: Path) -> RunRecord | None:
    """The record in the run directory `run`; None when there is none that can be read."""
    return read_json(run / "run.json", RunRecord)


def write_record(run: Path, record: RunRecord) -> None:
    """Replace the record of `run`. Raises OSError."""
    replace_file(run / "run.json", msgspec.json.encode(record) + b"\n")
