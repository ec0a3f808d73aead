"""`Deadline`: what does not come to an end is told with where it stands.

A thread waits beside the code that is tried. Code that holds the interpreter (a regular expression
that backtracks for ever) holds that thread too: faulthandler, which needs no interpreter, ends the
process a moment later.
"""

import asyncio
import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from agentrl.user_traceback import is_users, shown_path

__all__ = ["Deadline"]

#: Seconds after which faulthandler is to be quicker.
_GRACE_S = 2.0
_MAX_LINES = 8


class Deadline:
    """`with Deadline(limit_s, late)`: after so many seconds `late` is called with the lines of the
    user's at which its code stands, the innermost last, and ends the process. `wait`: waits so
    long for an event, and says whether it was set."""

    def __init__(
        self,
        limit_s: float,
        late: Callable[[list[str]], None],
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._limit_s = limit_s
        self._late = late
        self._wait_for = wait
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def watch_loop(self) -> None:
        """Called in a loop: its tasks may be what does not come to an end."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        faulthandler.dump_traceback_later(self._limit_s + _GRACE_S, exit=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _wait(self) -> None:
        if not self._wait_for(self._ended, self._limit_s):
            faulthandler.cancel_dump_traceback_later()
            self._late(list(self._standing())[-_MAX_LINES:])

    def _standing(self) -> Iterator[str]:
        """Of what waits in the loop, then of what the threads run."""
        yield from self._waiting()
        for thread, frame in sys._current_frames().items():
            if thread != self._thread.ident:
                yield from _lines(traceback.walk_stack(frame))

    def _waiting(self) -> Iterator[str]:
        for task in asyncio.all_tasks(self._loop) if self._loop is not None else ():
            yield from _lines(_awaited(task.get_coro()), is_innermost_first=False)


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of what it waits for."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _lines(
    frames: Iterator[tuple[FrameType, int]], *, is_innermost_first: bool = True
) -> list[str]:
    found = [frame for frame in traceback.StackSummary.extract(frames) if is_users(frame.filename)]
    lines = [
        f"{shown_path(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in found
    ]
    return lines[::-1] if is_innermost_first else lines
