"""A request that is made again until it is answered: what every client of engines does.

An engine may die and come back while one waits for it. That nobody is there is waited out; other
failures are counted, so that what no engine can serve ends.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from agentrl.errors import EngineError

__all__ = ["NOBODY_THERE", "FailedError", "until_answered"]

#: Pauses in seconds before a request is made again: doubling from the first to the last.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.25, 4.0
#: Answers that mean that no engine is there: they are waited out.
NOBODY_THERE = (502, 503, 504)
#: Other failures of one request after which it is given up.
_MAX_FAILURES = 4

T = TypeVar("T")


class FailedError(Exception):
    """An attempt failed; `is_absence`: nobody was there to take it."""

    def __init__(self, reason: str, *, is_absence: bool) -> None:
        super().__init__(reason)
        self.is_absence = is_absence


async def until_answered(attempt: Callable[[], Awaitable[T]], deadline_s: float, missed: str) -> T:
    """What the first attempt gives that raises no FailedError, one after the other. Raises
    EngineError after too many failures, and in the words of `missed` when none is answered in
    time."""
    trouble, failures, pause_s = "", 0, _FIRST_PAUSE_S
    with anyio.move_on_after(deadline_s):
        while True:
            try:
                return await attempt()
            except FailedError as error:
                trouble = str(error)
                failures += not error.is_absence
            if failures == _MAX_FAILURES:
                raise EngineError(f"{trouble} ({failures} attempts)")
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    raise EngineError(missed + (f"; before: {trouble}" if trouble else ""))
