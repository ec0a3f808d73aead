"""User code under a time limit, in the thread that imported it.

    in time -> cancelled at the limit -> a second later: left behind (OverdueError)
    the event loop makes no turn      -> interrupted in the line that holds it (BlockedError)

What waits in a thread cannot be cancelled and is no mistake: it goes on alone, and nobody waits for
it. Only the main thread can be interrupted; elsewhere a loop that is held stays so.
"""

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import anyio

__all__ = [
    "ERRORS",
    "ERRORS_IN_LOOP",
    "BlockedError",
    "MethodWatch",
    "OverdueError",
    "UserInterruptError",
    "contained",
    "run_watched",
]

#: What user code may raise; in a run each of these is an error of the episode.
ERRORS = (Exception, SystemExit, asyncio.CancelledError)
#: The same where an event loop runs: there asyncio makes Ctrl-C a cancellation.
ERRORS_IN_LOOP = (*ERRORS, KeyboardInterrupt, GeneratorExit)
#: Seconds that a cancelled phase has to end, and then what was left behind to go quietly.
GRACE_S = 1.0
#: Seconds between two looks of the event loop at the clock.
_TURN_S = 0.1

T = TypeVar("T")


class BlockedError(BaseException):
    """The event loop has not come back in time; its text says from where."""


class OverdueError(Exception):
    """`method` neither ended nor heeded its cancellation."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method


class UserInterruptError(Exception):
    """User code raised its cause, which would end the event loop as Ctrl-C does."""


class MethodWatch:
    """Knows which method is tried until when, and when the loop last made a turn."""

    def __init__(self) -> None:
        self.method = ""
        self.overdue: OverdueError | None = None
        self.blocked: BlockedError | None = None
        self._limit_s = self._end = math.inf
        self._turned = time.monotonic()

    def turned(self) -> bool:
        """The loop is making a turn now. Whether the method should long have ended."""
        self._turned = time.monotonic()
        return self._turned > self._end + GRACE_S

    @contextmanager
    def phase(self, method: str, limit_s: float) -> Iterator[anyio.CancelScope]:
        """What is inside is cancelled after `limit_s` and watched until it has ended."""
        self.method, self._limit_s = method, limit_s
        self._end = time.monotonic() + limit_s
        try:
            with anyio.move_on_after(limit_s) as deadline:
                yield deadline
        finally:
            self._end = math.inf

    @contextmanager
    def alarm(self) -> Iterator[None]:
        """Interrupt a loop that makes no turn; again and again, as a callback may swallow it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.signal(signal.SIGALRM, self._ring)
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, GRACE_S, GRACE_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
            signal.signal(signal.SIGALRM, handler)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._turned > self._limit_s + GRACE_S:
            words = f"{self.method} held the event loop for more than {self._limit_s:g} s"
            self.blocked = self.blocked or BlockedError(words)
            raise self.blocked


def run_watched(begin: Callable[[MethodWatch], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a loop of its own. Raises what it raises, OverdueError, BlockedError, and
    UserInterruptError in the place of a KeyboardInterrupt that user code raised."""
    watch = MethodWatch()
    try:
        with watch.alarm():
            return anyio.run(_conduct, watch, begin)
    except BlockedError:
        if watch.overdue is not None:  # it heeds no cancellation, and kept the loop from its end
            raise watch.overdue from None
        raise


async def _conduct(watch: MethodWatch, begin: Callable[[MethodWatch], Coroutine[Any, Any, T]]) -> T:
    asyncio.get_running_loop().set_default_executor(_LeftAlone())
    task = asyncio.ensure_future(contained(begin(watch)))
    while not task.done():
        await asyncio.wait({task}, timeout=_TURN_S)
        if watch.turned() and not task.done():
            failure: BaseException | None = watch.blocked  # it could heed no cancellation
            if failure is None:
                failure = watch.overdue = OverdueError(watch.method)
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
            raise failure
    return task.result()


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """`work` as a task whose KeyboardInterrupt is user code's: Ctrl-C itself cancels the main task
    of the loop. Raises UserInterruptError in its place."""
    try:
        return await work
    except (KeyboardInterrupt, GeneratorExit) as failure:
        raise UserInterruptError(f"user code raised {type(failure).__name__}") from failure


class _LeftAlone(ThreadPoolExecutor):
    """Threads of `asyncio.to_thread` that the end of the loop does not wait for."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
