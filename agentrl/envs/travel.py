"""A task on its way to an Env: packed as a message, and as JSON where a run goes on.

What JSON has no word for (a tuple, a set, a date, a key that is no text) arrives as something else:
the user is told before anything starts, and the Env is tried on the row as it arrives.
"""

from collections.abc import Iterator

import msgspec

from agentrl.errors import DataError
from agentrl.types import Task

__all__ = ["arrived"]


def arrived(task: Task) -> tuple[Task, str | None]:
    """`task` as an Env gets it, and a note where its row is not what it was. Raises DataError for a
    row that cannot be sent."""
    whose = f"the row of task {task.id}"
    try:
        packed = msgspec.msgpack.decode(msgspec.msgpack.encode(task.row))
        stored = msgspec.json.decode(msgspec.json.encode(task.row))
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{whose} cannot be sent: {error}; a row holds what JSON has") from error
    note = None
    if change := next(_changes(task.row, stored, ""), None):
        note = f"{whose} is not the same when it arrives: {change}; a row holds what JSON has"
    return Task(task.id, packed), note


def _changes(before: object, after: object, where: str) -> Iterator[str]:
    if type(before) is not type(after):
        was, now = type(before).__name__, type(after).__name__
        yield f"{where} is {was} {before!r:.40}, and arrives as {now} {after!r:.40}"
    elif isinstance(before, dict) and isinstance(after, dict):
        for key, other in zip(before, after, strict=False):
            yield from _changes(key, other, f"the key {where}[{key!r}]")
            yield from _changes(before[key], after[other], f"{where}[{key!r}]")
    elif isinstance(before, list) and isinstance(after, list):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _changes(*pair, f"{where}[{index}]")
