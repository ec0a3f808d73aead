"""`SourceJournal`: what a class of `--data-source-path` gave to a run, in `runs/ID/source`.

    asked -> in the journal, durable -> given to the run

One line for each time that it was asked. A run that goes on takes from here what was given and not
begun, so no task depends on the class giving it twice. A line that a power cut left unfinished was
given to nobody, and is removed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agentrl import disk
from agentrl.errors import StoreError

__all__ = ["JournalLine", "SourceJournal"]

_FILE = "given.jsonl"


class JournalLine(msgspec.Struct, frozen=True):
    """One time that a source was asked: for how many groups, and the rows of the tasks that it
    gave."""

    num_samples: int
    rows: list[dict[str, Any]]


class SourceJournal:
    """The journal in a folder, which is made with the first line. One program at a time writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / _FILE
        self._file: BinaryIO | None = None

    def __iter__(self) -> Iterator[JournalLine]:
        """All that was given, in order. Raises StoreError for a line that is none."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield msgspec.json.decode(line, type=JournalLine)
                except msgspec.DecodeError as error:
                    raise StoreError(
                        f"{self._path}: line {number} is spoilt ({error}), and with it the tasks "
                        "that the run was given; bring the file back, or start a new run (--load)"
                    ) from error

    def write(self, asked: JournalLine) -> None:
        """Durable when it returns. Raises OSError."""
        if self._file is None:
            self._file = self._opened()
        self._file.write(msgspec.json.encode(asked) + b"\n")
        disk.sync_file(self._file)

    def _opened(self) -> BinaryIO:
        disk.make_folder(self.folder)
        if not self._path.exists():
            return disk.create_file(self._path)
        file = self._path.open("r+b")
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        file.truncate(whole)
        file.seek(whole)
        return file
