"""Task sources: where a run's tasks come from, in a fixed order that a cursor can resume.

`JsonlSource` indexes its file once, at construction, and then reads one row at a time: 8 bytes of
memory per row. It refuses a missing or empty file, an empty slice, a malformed row (when it is
reached) and a file that changed after it was indexed.
"""

import os
import random
import re
from array import array
from collections.abc import AsyncIterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from agentrl.envs.depth import require_shallow
from agentrl.errors import ConfigError, DataError
from agentrl.paths import kind_of
from agentrl.types import Task

__all__ = ["JsonlSource"]

_MISTAKEN = {
    b"[": "the file looks like one JSON array: write one object a line instead",
    b"{\n": "the file looks like one object over many lines: each line must be a whole object",
    b"{\r\n": "the file looks like one object over many lines: each line must be a whole object",
    b"\xef\xbb\xbf": "the file begins with a byte order mark: save it as UTF-8 without one",
    b"\x1f\x8b": "the file is compressed: unpack it first",
    b"PAR1": "the file is Parquet: write its rows as JSON, one object a line",
}
_SLICE = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\]")


class JsonlSource:
    """Tasks from a JSONL file: one object a line, blank lines ignored. A `types.TaskSource`.

    `path` may end in `@[a:b]`, a slice of the rows. `shuffle` orders each epoch by `seed + epoch`.
    `num_epoch` None goes on for ever. Every row must have `required_keys`. A task's id is
    `<file stem>:<line>`, the same in every epoch.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        seed: int = 0,
        shuffle: bool = False,
        num_epoch: int | None = 1,
        required_keys: Sequence[str] = (),
    ) -> None:
        self.path, rows = _split_slice(str(path))
        self._seed = seed
        self._shuffle = shuffle
        self._num_epoch = num_epoch
        self._required_keys = frozenset(required_keys)
        self._offsets, self._lines, self._stamp = _index(self.path, rows)
        if not self._offsets:
            raise ConfigError(f"{path} holds no tasks")

    def __len__(self) -> int:
        """Tasks of one epoch."""
        return len(self._offsets)

    def check(self, limit: int) -> str | None:
        """Read the first `limit` rows. Raises `DataError` as `tasks` does; returns a note where one
        lacks what the first has, which an Env may mean or not."""
        note = None
        with self.path.open("rb") as file:
            first = self._read(file, 0).row
            for index in range(1, min(limit, len(self))):
                lacks = sorted(first.keys() - self._read(file, index).row.keys())
                if lacks and note is None:
                    note = (
                        f"{self.path} line {self._lines[index]} lacks {', '.join(lacks)}, which "
                        f"line {self._lines[0]} has"
                    )
        return note

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on, counted over all epochs.

        Raises `DataError`, naming file and line, at a row that is not a JSON object with the
        required keys or is nested too deeply, and when the file is not the one that was indexed.
        """
        epoch, first = divmod(cursor, len(self))
        with self.path.open("rb") as file:
            while self._num_epoch is None or epoch < self._num_epoch:
                order = self._order(epoch)
                for position in range(first, len(self)):
                    yield self._read(file, order[position])
                epoch, first = epoch + 1, 0

    def _order(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self))
        order = array("q", range(len(self)))
        random.Random(self._seed + epoch).shuffle(order)
        return order

    def _read(self, file: BufferedReader, index: int) -> Task:
        line = self._lines[index]
        if _stamp(file) != self._stamp:
            raise DataError(f"{self.path} changed while the run was reading it; start a new run")
        file.seek(self._offsets[index])
        try:
            row = msgspec.json.decode(file.readline(), type=dict[str, Any])
        # msgspec reports bad UTF-8 and deep nesting with errors of their own.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            advice = _advice(file)
            raise DataError(
                f"{self.path} line {line} is not a JSON object: {error}{advice}"
            ) from error
        if missing := self._required_keys - row.keys():
            raise DataError(
                f"{self.path} line {line} lacks {sorted(missing)}; it has {sorted(row)}"
            )
        require_shallow(row, f"{self.path} line {line}")
        return Task(id=f"{self.path.stem}:{line}", row=row)


def _advice(file: BufferedReader) -> str:
    """What to do about a file that is no JSONL, as its first bytes tell."""
    file.seek(0)
    head = file.read(64).lstrip()
    for start, advice in _MISTAKEN.items():
        if head.startswith(start):
            return f"; {advice}"
    return ""


def _split_slice(path: str) -> tuple[Path, slice]:
    match = _SLICE.fullmatch(path)
    if match is None:
        if path.endswith("]") and "@[" in path:
            raise ConfigError(f"{path!r} has a malformed slice; write path@[a:b]")
        return Path(path), slice(None)
    start, stop = (int(match[name]) if match[name] else None for name in ("start", "stop"))
    return Path(match["path"]), slice(start, stop)


def _index(path: Path, rows: slice) -> tuple["array[int]", "array[int]", tuple[int, int]]:
    """Byte offset and line number (from 1) of every row of the slice, and the file's stamp."""
    offsets, lines = array("q"), array("q")
    if (kind := kind_of(path)) not in ("a file", "nothing"):  # a FIFO would be waited for
        raise ConfigError(f"cannot read the tasks of {path}: it is {kind}, not a file of rows")
    try:
        with path.open("rb") as file:
            stamp = _stamp(file)
            offset = 0
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    offsets.append(offset)
                    lines.append(number)
                offset += len(line)
    except OSError as error:
        raise ConfigError(f"cannot read the tasks of {path}: {error.strerror}") from error
    return offsets[rows], lines[rows], stamp


def _stamp(file: BufferedReader) -> tuple[int, int]:
    """Size and modification time, to notice that the file changed under its index."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
