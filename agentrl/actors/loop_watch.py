"""`LoopWatch`: user code that holds the event loop of a worker is named in its log.

    the loop makes turns -> none for HELD_S: its stack is looked at -> one warning for each function

A reward or a tool that blocks holds every episode of its worker, and the heartbeats: one that holds
them for long has the worker killed, and `cluster/standstill.py` tells where it stood. A loop that
stands in no code of the user's is not told: agentrl's own work, or a busy machine.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from itertools import takewhile
from types import FrameType, TracebackType
from typing import Self

from agentrl.envs.check.harness import ADVICE
from agentrl.user_traceback import is_users, shown_path

__all__ = ["HELD_S", "LoopWatch"]

#: Seconds without a turn of the loop after which it is looked at, and between two looks.
HELD_S = 5.0
_LOG = logging.getLogger(__name__)


class LoopWatch:
    """Opened in the loop that it watches, from a thread beside it."""

    def __init__(self, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self._turned = time.monotonic()
        self._told: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watch", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._caller = threading.get_ident()
        self._turn()
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._closed.set()
        self._thread.join()

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._timer = self._loop.call_later(self._held_s / 4, self._turn)

    def _watch(self) -> None:
        while not self._closed.wait(self._held_s / 2):
            lasted_s = time.monotonic() - self._turned
            frame = sys._current_frames().get(self._caller)
            if lasted_s >= self._held_s and frame is not None:
                self._tell(frame, lasted_s)

    def _tell(self, frame: FrameType, lasted_s: float) -> None:
        within_loop = takewhile(_is_within_loop, traceback.walk_stack(frame))
        theirs = [(f, line) for f, line in within_loop if is_users(f.f_code.co_filename)]
        if not theirs or theirs[-1][0].f_code.co_qualname in self._told:
            return
        places = [_place(each, line) for each, line in theirs]
        self._told.add(theirs[-1][0].f_code.co_qualname)
        within = f", at {places[0]}" if places[1:] else ""
        _LOG.warning(
            "the event loop has made no turn for %.0f s: it stands in %s%s, and every episode of "
            "this worker waits: %s",
            lasted_s,
            places[-1],
            within,
            ADVICE,
        )


def _is_within_loop(at: tuple[FrameType, int]) -> bool:
    return at[0].f_code is not asyncio.BaseEventLoop.run_forever.__code__


def _place(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({shown_path(code.co_filename)}:{line})"
