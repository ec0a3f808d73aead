"""The rows of --prompt-data that are read before anything starts: all, up to a limit of time.

A later one that is malformed ends the run when it is reached.
"""

import time
from collections.abc import Iterator

from agentrl.envs.sources import RowSource
from agentrl.types import Task, TaskSource

__all__ = ["check_rows", "first_rows"]

#: Seconds after which no further row is read.
LIMIT_S = 10.0


def check_rows(source: TaskSource) -> list[str]:
    """Notes on the rows of --prompt-data, as far as they are read. Raises DataError for one that
    cannot be."""
    return source.check(limit_s=LIMIT_S) if isinstance(source, RowSource) else []


def first_rows(source: TaskSource) -> Iterator[Task]:
    """The tasks of these rows; none of a source that is no file of rows. Raises as `check_rows`."""
    if not isinstance(source, RowSource):
        return
    until = time.monotonic() + LIMIT_S
    for task in source.first():
        yield task
        if time.monotonic() >= until:
            return
