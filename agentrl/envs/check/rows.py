"""The rows of --prompt-data that are read before anything starts: how many, and for how long.

A later one that is malformed ends the run when it is reached.
"""

import time
from collections.abc import Iterator

from agentrl.envs.sources import RowSource
from agentrl.types import Task, TaskSource

__all__ = ["SLOW_ROWS", "check_rows", "first_rows"]

#: Rows that are read of a format in which that takes time, and seconds after which no further row
#: of any is.
SLOW_ROWS, LIMIT_S = 1000, 10.0


def check_rows(source: TaskSource) -> list[str]:
    """Notes on the rows of --prompt-data, as far as they are read. Raises DataError for one that
    cannot be."""
    return source.check(_limit(source), LIMIT_S) if isinstance(source, RowSource) else []


def first_rows(source: TaskSource) -> Iterator[Task]:
    """The tasks of these rows; none of a source that is no file of rows. Raises as `check_rows`."""
    if not isinstance(source, RowSource):
        return
    until = time.monotonic() + LIMIT_S
    for task in source.first(_limit(source)):
        yield task
        if time.monotonic() >= until:
            return


def _limit(source: RowSource) -> int | None:
    return SLOW_ROWS if source.is_slow else None
