"""SIGINT and SIGTERM: a cancellation for the processes of a run, an error for its driver; and the
end of a process at once."""

import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import anyio

from agentrl.errors import FencedError

__all__ = [
    "InterruptedRunError",
    "SignalGate",
    "end_at_once",
    "exit_at_once",
    "holding_sigint",
    "in_turns",
    "until_sigterm",
]

logger = logging.getLogger(__name__)

#: Seconds that a last word may take.
_LAST_WORD_S = 1.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds that a long wait goes on before it looks whether a signal has come.
_TURN_S = 0.2


class InterruptedRunError(Exception):
    """A signal asked the run to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_at_once(error: FencedError) -> None:
    """`end_at_once`: another process has the place of this one, and a push that it went on with
    would be taken for that other's."""
    end_at_once(str(error), error.exit_code)


def end_at_once(words: str, exit_code: int) -> None:
    """End this process as SIGKILL would, whatever its threads are in the midst of. What it says of
    it may be lost: a thread that stands in a write to the log holds up nobody else's end."""
    word = threading.Thread(target=logger.error, args=("%s", words), daemon=True)
    word.start()
    word.join(_LAST_WORD_S)
    os._exit(exit_code)


@contextmanager
def holding_sigint() -> Iterator[None]:
    """Within, Ctrl-C waits; at the end it is raised. For imports of native code that calls Python,
    as torch does: an exception there ends the process (`terminate called`). In the main thread."""
    came: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if came:
            signal.raise_signal(signal.SIGINT)


class SignalGate:
    """Remembers a signal while nothing may be interrupted; `check` raises it where it may, and
    user code is interrupted as Python does it.

    Used by the driver from its first moment: an exception in the middle of Ray's start would crash
    Ray and leave its processes behind.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._interrupts = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "SignalGate":
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Take the handlers; call it again after code that installs its own, as Ray does."""
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def check(self) -> None:
        """Raise InterruptedRunError if a signal has come."""
        if self._number is not None:
            raise InterruptedRunError(self._number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within, a signal raises KeyboardInterrupt in whatever runs, each signal again. What is
        heard outside is InterruptedRunError, whatever the code made of it."""
        try:
            self._interrupts = True
            self.check()
            yield
        finally:
            self._interrupts = False
            self.arm()
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number
        if self._interrupts:
            raise KeyboardInterrupt


def in_turns(is_done: Callable[[float], bool], timeout_s: float, check: Callable[[], None]) -> bool:
    """Wait with `is_done`, which waits so many seconds and says whether it is; `check` before each
    turn may raise. Returns False after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while True:
        check()
        left_s = end - time.monotonic()
        if is_done(max(0.0, min(_TURN_S, left_s))):
            return True
        if left_s <= 0:
            return False


async def until_sigterm(work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` until it returns or SIGTERM arrives; SIGINT is the driver's business alone."""
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await work()
                group.cancel_scope.cancel()

            group.start_soon(run)
            async for number in signals:
                if number == signal.SIGTERM:
                    group.cancel_scope.cancel()
                    return
