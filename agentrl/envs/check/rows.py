"""The rows of --prompt-data that are read before anything starts: all, up to a limit of time.

Refused with file and line: a row that cannot be read, and one of a prompt and a label that cannot
be played, because it lacks one of them or asks for a reward that has no rule for it; and a key of
rows that no row has. A later row that is malformed ends the run when it is reached; one that cannot
be played fails its group.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from agentrl.envs.check.bad_rows import BadRows
from agentrl.envs.rows.keys import holds
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError, DataError, EnvError
from agentrl.types import Task, TaskSource

__all__ = ["check_rows", "first_rows"]

#: The flags that say where rows have what tasks have under a key.
_FLAGS = {"metadata": "--metadata-key", "tools": "--tool-key"}
#: Seconds after which no further row is read.
LIMIT_S = 10.0


def check_rows(
    source: TaskSource,
    take: Callable[[dict[str, Any]], object] | None = None,
    *,
    is_part: bool = False,
) -> list[str]:
    """Notes on the rows of --prompt-data, as far as they are read. `take` raises EnvError for one
    that cannot be played; `is_part`: others of a mixture may have the keys that are named.

    Raises DataError for rows that cannot be read or played, ConfigError where none of them can be
    played or has what a flag names.
    """
    if not isinstance(source, RowSource):
        return []
    seen = _Seen(set(source.names))

    def look(index: int, task: Task) -> None:
        seen.num += 1
        seen.keys |= task.row.keys()
        seen.unfound -= {key for key in seen.unfound if holds(task.row, source.names[key])}
        try:
            if take is not None:
                take(task.row)
        except EnvError as error:
            seen.bad.add(source.where(index), str(error))

    notes = source.check(limit_s=LIMIT_S, look=look)
    unfound = [
        f"{_FLAGS[key]} {source.names[key]}: no row of {source.path} has that; the keys of its "
        f"rows are {sorted(seen.keys)}"
        for key in sorted(seen.unfound)
    ]
    wrong = list(_about_bad(seen))
    if seen.num == len(source) and not is_part:
        wrong += [f"{line}: name one, or leave the flag out" for line in unfound]
    if wrong:
        raise (DataError if 0 < seen.bad.num < seen.num else ConfigError)("\n".join(wrong))
    return notes + unfound


def _about_bad(seen: "_Seen") -> Iterator[str]:
    if seen.bad.num == seen.num > 1:
        yield f"no row of --prompt-data can be played: {seen.bad}"
    elif seen.bad.num:
        rows = "a row" if seen.bad.num == 1 else f"{seen.bad.num} rows"
        yield f"{rows} of --prompt-data cannot be played: {seen.bad}; mend or leave out"


class _Seen(msgspec.Struct):
    """What the rows so far have shown. `unfound`: keys of tasks that no row has anything for."""

    unfound: set[str]
    keys: set[str] = msgspec.field(default_factory=set)
    bad: BadRows = msgspec.field(default_factory=BadRows)
    num: int = 0


def first_rows(source: TaskSource) -> Iterator[Task]:
    """The tasks of these rows; none of a source that is no file of rows. Raises as `check_rows`."""
    if not isinstance(source, RowSource):
        return
    until = time.monotonic() + LIMIT_S
    for task in source.first():
        yield task
        if time.monotonic() >= until:
            return
