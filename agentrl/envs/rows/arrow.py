"""A dataset as `save_to_disk` of Hugging Face `datasets` writes it: `state.json` and Arrow files.

The files are memory-mapped: a row costs the pages that it lies on, and the first one of a batch
those of the batch, which is looked at for damage. Refused: a file that is missing, cut off or of
other columns than the first, and a dataset whose rows are chosen by an index file.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from agentrl.envs.rows.base import Stamp
from agentrl.envs.rows.plain import plain_row
from agentrl.envs.rows.schemas import require_same
from agentrl.errors import ConfigError, DataError

__all__ = ["ArrowRows"]

_T = TypeVar("_T")

#: How a whole stream ends.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    files: list[_File] = msgspec.field(name="_data_files")
    indices: list[_File] | None = msgspec.field(name="_indices_data_files", default=None)


class ArrowRows:
    """`RowFile` of a dataset's folder. Raises ConfigError for one that cannot be read, OSError
    where no file can."""

    is_slow = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        state = _read(folder / "state.json", _State)
        if state.indices:
            raise ConfigError(
                f"{folder} chooses its rows by an index file of its own; write it again with "
                "`dataset.flatten_indices().save_to_disk(...)`"
            )
        paths = [folder / file.filename for file in state.files]
        self._stamps = [Stamp(path) for path in paths]
        parts = [(path, *_mapped(path)) for path in paths]
        require_same([(path, schema) for path, schema, _ in parts])
        self._batches = [batch for _, _, batches in parts for batch in batches]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        self._files = [path for path, _, batches in parts for _ in batches]
        self._are_whole: set[int] = set()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def where(self, index: int) -> str:
        """See `RowFile`."""
        return f"{self._folder} row {index + 1}"

    def task_id(self, index: int) -> str:
        """See `RowFile`."""
        return f"{self._folder.name}:{index + 1}"

    def read(self, index: int) -> dict[str, Any]:
        """See `RowFile`."""
        for stamp in self._stamps:
            stamp.check()
        at = bisect_right(self._ends, index)
        batch, first = self._batches[at], self._ends[at] - self._batches[at].num_rows
        if at not in self._are_whole:
            self._check(at, first)
        return plain_row(batch, index - first, self.where(index))

    def _check(self, at: int, first: int) -> None:
        """Raise DataError for a batch whose values point anywhere, which would end the process."""
        try:
            self._batches[at].validate(full=True)
        except pa.ArrowException as error:
            raise DataError(
                f"{self._folder} rows {first + 1} to {self._ends[at]} "
                f"({self._files[at].name}) cannot be read: {error}; write the dataset again"
            ) from error
        self._are_whole.add(at)

    def each(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `RowFile`."""
        return map(self.read, places)


def _mapped(path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """What a stream of Arrow holds, without reading its values."""
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                batches.append(batch)
                rows += batch.num_rows
            # A stream that is cut off between two of its parts looks like a shorter one.
            file.seek(max(0, file.size() - len(_END)))
            if file.read() != _END:
                raise pa.ArrowInvalid("it does not end as a stream does")
            return reader.schema, batches
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"{path} is cut off or damaged behind its row {rows}: {error}; write the dataset again"
        ) from error


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{path} is not what `save_to_disk` of Hugging Face datasets writes: {error}"
        ) from error
