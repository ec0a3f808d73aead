"""Parquet, by row groups: one is unpacked when a row of it is first asked for, and never again.

A row of Parquet cannot be read alone, and a shuffled run would unpack whole groups for each. So the
groups that were asked for lie in a temporary file as small pieces, and a row costs one of them.
Memory holds a piece and 24 bytes for each of them; the temporary file is gone with the process.
"""

import os
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.envs.rows.base import Stamp
from agentrl.envs.rows.plain import plain_row
from agentrl.envs.rows.schemas import without_dictionaries
from agentrl.errors import ConfigError, DataError

__all__ = ["ParquetRows", "Scratch"]

#: Rows of a piece.
_PIECE = 64
#: Bytes of a column that are read at once, where it is not read as a whole.
_BUFFER = 2**20


class Scratch:
    """A temporary file without a name, made when something is first put into it. Several sets of
    rows may share it."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._size = 0

    def add(self, buffer: pa.Buffer) -> tuple[int, int]:
        """Append; returns offset and size. Raises OSError."""
        if self._file is None:
            self._file, path = tempfile.mkstemp(prefix="agentrl-rows-")
            weakref.finalize(self, os.close, self._file)
            Path(path).unlink()
        place = self._size, buffer.size
        left = memoryview(buffer)
        while left:
            written = os.pwrite(self._file, left, self._size)
            self._size, left = self._size + written, left[written:]
        return place

    def read(self, offset: int, size: int) -> bytes:
        """What was added there."""
        assert self._file is not None
        return os.pread(self._file, size, offset)


class _Group(msgspec.Struct):
    """An unpacked row group: the first row of each piece, its place, and what the columns are."""

    schema: pa.Schema
    starts: "array[int]"
    offsets: "array[int]"
    sizes: "array[int]"


class ParquetRows:
    """`RowFile` of a Parquet file, whose tasks go by `name`. Raises ConfigError for one that cannot
    be read, OSError where no file can."""

    is_slow = True

    def __init__(self, path: Path, scratch: Scratch, name: str) -> None:
        self._path = path
        self._name = name
        self._scratch = scratch
        self._stamp = Stamp(path)
        try:
            with pq.ParquetFile(path) as file:
                self.schema: pa.Schema = file.schema_arrow
                groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
                self._ends = array("q", accumulate(group.num_rows for group in groups))
        except pa.ArrowException as error:
            raise ConfigError(
                f"{path} is no whole Parquet file: {error}; fetch or write it again"
            ) from error
        self._groups: dict[int, _Group] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def where(self, index: int) -> str:
        """See `RowFile`."""
        return f"{self._path} row {index + 1}"

    def task_id(self, index: int) -> str:
        """See `RowFile`."""
        return f"{self._name}:{index + 1}"

    def read(self, index: int) -> dict[str, Any]:
        """See `RowFile`."""
        self._stamp.check()
        number, first = self._group_of(index)
        group = self._groups.get(number) or self._unpacked(number)
        piece = bisect_right(group.starts, index - first) - 1
        try:
            packed = self._scratch.read(group.offsets[piece], group.sizes[piece])
            batch = pa.ipc.read_record_batch(pa.py_buffer(packed), group.schema)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{self.where(index)} cannot be read: {error}") from error
        return plain_row(batch, index - first - group.starts[piece], self.where(index))

    def each(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
        """See `RowFile`: a group is read once, piece by piece, and nothing of it is kept. `places`
        ascend within a group."""
        for (number, first), wanted in groupby(places, key=self._group_of):
            self._stamp.check()
            pieces, start, batch = self._pieces(number), first, None
            for index in wanted:
                while batch is None or index >= start + batch.num_rows:
                    start += batch.num_rows if batch is not None else 0
                    batch = next(pieces)
                yield plain_row(batch, index - start, self.where(index))

    def _group_of(self, index: int) -> tuple[int, int]:
        """The row group that holds a row, and its first row."""
        number = bisect_right(self._ends, index)
        return number, self._ends[number - 1] if number else 0

    def _unpacked(self, number: int) -> _Group:
        starts, offsets, sizes = array("q"), array("q"), array("q")
        start, schema = 0, self.schema
        for batch in self._pieces(number):
            try:
                offset, size = self._scratch.add(batch.serialize())
            except OSError as error:
                raise DataError(f"{self._path} cannot be unpacked: {error}") from error
            starts.append(start)
            offsets.append(offset)
            sizes.append(size)
            start, schema = start + batch.num_rows, batch.schema
        self._groups[number] = _Group(schema, starts, offsets, sizes)
        return self._groups[number]

    def _pieces(self, number: int) -> Iterator[pa.RecordBatch]:
        """The pieces of a row group. Raises DataError, naming the first row of one that cannot be
        read."""
        start, end = self._ends[number - 1] if number else 0, self._ends[number]
        try:
            with pq.ParquetFile(
                self._path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as file:
                for batch in file.iter_batches(_PIECE, row_groups=[number], use_threads=False):
                    # A piece is written without the words that a dictionary stands for.
                    yield batch.cast(without_dictionaries(batch.schema))
                    start += batch.num_rows
            if start != end:
                raise ValueError(f"its group ends at row {start}, not at row {end}")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(
                f"{self.where(start)} cannot be read, nor the rows that share its page: {error}; "
                "fetch or write the file again"
            ) from error
