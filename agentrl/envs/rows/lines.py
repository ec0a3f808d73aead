"""JSONL: one object a line, blank lines ignored.

The file is indexed once, at construction, and then read one row at a time: 16 bytes of memory for
each row. Refused: a malformed row, when it is reached, with what the file seems to be instead.
"""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.envs.rows.base import Stamp
from agentrl.errors import DataError

__all__ = ["JsonLines"]

_MISTAKEN = {
    b"[": "the file looks like one JSON array: write one object a line instead",
    b"{\n": "the file looks like one object over many lines: each line must be a whole object",
    b"{\r\n": "the file looks like one object over many lines: each line must be a whole object",
    b"\xef\xbb\xbf": "the file begins with a byte order mark: save it as UTF-8 without one",
    b"\x1f\x8b": "the file is compressed: unpack it first",
    b"ARROW1": "the file is Arrow: name the folder that `save_to_disk` wrote, or write Parquet",
    b"\xff\xff\xff\xff": "the file is Arrow: name the folder that `save_to_disk` wrote",
}


class JsonLines:
    """`RowFile` of a JSONL file, whose tasks go by `name`, or by that of the file. Raises OSError
    for one that cannot be read."""

    is_slow = False

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path = path
        self._name = path.stem if name is None else name
        self._stamp = Stamp(path)
        self._offsets, self._numbers = array("q"), array("q")
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    self._offsets.append(offset)
                    self._numbers.append(number)
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def where(self, index: int) -> str:
        """See `RowFile`."""
        return f"{self._path} line {self._numbers[index]}"

    def task_id(self, index: int) -> str:
        """See `RowFile`: the line stays the id of its row in any slice."""
        return f"{self._name}:{self._numbers[index]}"

    def read(self, index: int) -> dict[str, Any]:
        """See `RowFile`."""
        (row,) = self.each([index])
        return row

    def each(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `RowFile`: the file is opened once."""
        self._stamp.check()
        with self._path.open("rb") as file:
            for index in places:
                file.seek(self._offsets[index])
                yield self._row(index, file.readline())

    def _row(self, index: int, line: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        # msgspec reports bad UTF-8 and deep nesting with errors of their own.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            what = f"{self.where(index)} is not a JSON object: {error}{self._advice()}"
            raise DataError(what) from error

    def _advice(self) -> str:
        """What to do about a file that is no JSONL, as its first bytes tell."""
        with self._path.open("rb") as file:
            head = file.read(64).lstrip()
        for start, advice in _MISTAKEN.items():
            if head.startswith(start):
                return f"; {advice}"
        return ""
