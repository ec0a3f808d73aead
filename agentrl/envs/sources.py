"""`RowSource`: tasks from rows, in a fixed order that a cursor can resume.

Rows are read by position, from a file or folder in any format of `rows/`, and never loaded as a
whole. Refused: nothing to read, an empty slice, and a row that lacks a key, when it is reached.
"""

import math
import random
import re
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio.to_thread

from agentrl.envs.depth import require_shallow
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.rows.load import open_rows
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task

__all__ = ["RowSource"]

_SLICE = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?\]")


class RowSource:
    """Tasks from rows of JSONL, Parquet or a Hugging Face dataset. A `types.TaskSource`.

    `path` may end in `@[a:b]`, a slice of the rows. `shuffle` orders each epoch by `seed + epoch`.
    `num_epoch` None goes on for ever. Every row must have `required_keys`. What a row has under a
    value of `names` stands in its task under the key. A task's id is `<file stem>:<line or row>`,
    the same in every epoch.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        seed: int = 0,
        shuffle: bool = False,
        num_epoch: int | None = 1,
        required_keys: Sequence[str] = (),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path, part = _split_slice(str(path))
        self._seed = seed
        self._shuffle = shuffle
        self._num_epoch = num_epoch
        self._required_keys = frozenset(required_keys)
        #: Where rows have what tasks have under a key, if that is not the key.
        self.names = {key: name for key, name in names.items() if key != name}
        self._rows = open_rows(self.path)
        self._places: Sequence[int] = range(len(self._rows))[part]
        #: The epoch that was last asked for, and the order of its rows.
        self._in_order: tuple[int, Sequence[int]] | None = None
        if not self._places:
            raise ConfigError(f"{path} holds no tasks")

    def __len__(self) -> int:
        """Tasks of one epoch."""
        return len(self._places)

    def check(
        self,
        limit: int | None = None,
        limit_s: float = math.inf,
        look: Callable[[int, Task], None] = lambda index, task: None,
    ) -> list[str]:
        """Read the first `limit` rows (None: all), for `limit_s` seconds at most; `look` is shown
        each, with its place. Raises `DataError` as `tasks` does; notes that a row lacks what the
        first has, which an Env may mean or not, and that some rows were not read."""
        notes: list[str] = []
        first: Mapping[str, object] = {}
        num, until = 0, time.monotonic() + limit_s
        for num, task in enumerate(self.first(limit), start=1):
            look(num - 1, task)
            first = first or task.row
            lacks = sorted(first.keys() - task.row.keys())
            if lacks and not notes:
                where = self.where(num - 1)
                notes.append(f"{where} lacks {', '.join(lacks)}, which the first row has")
            if time.monotonic() >= until:
                break
        if num < len(self):
            notes.append(
                f"the first {num} of {len(self)} rows of {self.path} were read; a later one that "
                "cannot be read ends the run when it is reached"
            )
        return notes

    def first(self, limit: int | None = None) -> Iterator[Task]:
        """The tasks of the first `limit` rows (None: all), as the file has them. Raises as
        `tasks`."""
        places = self._places[:limit]
        return map(self._task, places, self._rows.each(places))

    def where(self, index: int) -> str:
        """The file and the line of a row, by its place in the order of the file."""
        return self._rows.where(self._places[index])

    def where_at(self, position: int) -> str:
        """The same by its position among `tasks`."""
        return self._rows.where(self._place(position))

    def keep(self, indices: Sequence[int]) -> None:
        """Leave out all rows but those, by their place in the order of the file."""
        self._places = array("q", [self._places[index] for index in indices])
        self._in_order = None

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on, counted over all epochs.

        Raises `DataError`, naming file and row, at a row that cannot be read, lacks a required key
        or is nested too deeply, and when the file is not the one that was opened.
        """
        end = math.inf if self._num_epoch is None else self._num_epoch * len(self)
        while cursor < end:
            if self._rows.is_slow:
                yield await anyio.to_thread.run_sync(self.at, cursor)
            else:
                yield self.at(cursor)
            cursor += 1

    def at(self, position: int) -> Task:
        """The task at `position`, counted over all epochs, whether or not these have an end. Raises
        as `tasks`."""
        place = self._place(position)
        return self._task(place, self._rows.read(place))

    def _place(self, position: int) -> int:
        epoch, number = divmod(position, len(self))
        if self._in_order is None or self._in_order[0] != epoch:
            self._in_order = epoch, self._order(epoch)
        return self._places[self._in_order[1][number]]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self))
        order = array("q", range(len(self)))
        random.Random(self._seed + epoch).shuffle(order)
        return order

    def _task(self, place: int, row: dict[str, Any]) -> Task:
        """The task that `row` is. Raises `DataError`."""
        where = self._rows.where(place)
        if missing := sorted(key for key in self._required_keys if not holds(row, key)):
            raise DataError(f"{where} lacks {missing}; it has {sorted(row)}")
        row |= {key: find(row, name) for key, name in self.names.items() if holds(row, name)}
        require_shallow(row, where)
        return Task(id=self._rows.task_id(place), row=row)


def _split_slice(path: str) -> tuple[Path, slice]:
    match = _SLICE.fullmatch(path)
    if match is None:
        if path.endswith("]") and "@[" in path:
            raise ConfigError(f"{path!r} has a malformed slice; write path@[a:b]")
        return Path(path), slice(None)
    start, stop = (int(match[name]) if match[name] else None for name in ("start", "stop"))
    return Path(match["path"]), slice(start, stop)
