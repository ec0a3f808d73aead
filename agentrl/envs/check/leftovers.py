"""Tasks that go on after an episode, and whether they are the fault of who wrote it.

    play -> what goes on? nothing: well
                          something: play again -> one more of it, or code of the user's: a fault

A framework may keep a task for the whole process that it began at its first use: the writer of its
log, the keeper of its connections. Episodes do not add to those.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from agentrl.user_traceback import is_users

__all__ = ["tasks_left"]

#: Seconds between two looks at what goes on.
_LOOK_S = 0.05

Task = asyncio.Task[Any]


async def tasks_left(play: Callable[[], Awaitable[object]], gone_s: float) -> list[str]:
    """Names of the tasks that `play` leaves and is to blame for; each has `gone_s` to end."""
    before = asyncio.all_tasks()
    await play()
    left = await _still_there(before, gone_s)
    if not left:
        return []
    num_left = Counter(map(_name_of, left))
    await play()
    grown = Counter(map(_name_of, await _still_there(before, gone_s))) - num_left
    return sorted(_name_of(task) for task in left if _name_of(task) in grown or _is_users(task))


async def _still_there(before: set[Task], gone_s: float) -> set[Task]:
    left: set[Task] = set()
    with anyio.move_on_after(gone_s):
        while left := asyncio.all_tasks() - before:  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(_LOOK_S)
    return left


def _name_of(task: Task) -> str:
    """What a task runs, or what it was named."""
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", name) if name.startswith("Task-") else name


def _is_users(task: Task) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and is_users(code.co_filename)
