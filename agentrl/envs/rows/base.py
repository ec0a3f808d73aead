"""`RowFile`: what every format of rows is, and the stamp by which a changed file is noticed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl.errors import DataError

__all__ = ["RowFile", "Stamp"]


class RowFile(Protocol):
    """Rows by position. `is_slow`: a read may take long, and belongs into a thread."""

    is_slow: bool

    def __len__(self) -> int: ...

    def where(self, index: int) -> str:
        """The place of a row, for errors: `rows.jsonl line 4`."""
        ...

    def task_id(self, index: int) -> str:
        """The id of the task that the row is: `rows:4`."""
        ...

    def read(self, index: int) -> dict[str, Any]:
        """The row, of what JSON has. Raises DataError for one that cannot be had."""
        ...

    def each(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The rows at `places` in turn: as `read`, and quicker where many are wanted."""
        ...


class Stamp:
    """Size and modification time of a file when it was opened. Raises OSError where none is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = self._now()

    def check(self) -> None:
        """Raise DataError when the file is another one now."""
        try:
            is_same = self._now() == self._found
        except OSError:
            is_same = False
        if not is_same:
            raise DataError(f"{self._path} changed while the run was reading it; start a new run")

    def _now(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_size, status.st_mtime_ns
