"""SIGINT and SIGTERM: a cancellation for the processes of a run, an error for its driver."""

import signal
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import Any

import anyio

__all__ = ["Flag", "InterruptedRunError", "SignalGate", "until_sigterm"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRunError(Exception):
    """A signal asked the run to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Flag:
    """Something that a signal handler sets and one reader takes back."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set it; again changes nothing."""
        self._is_set = True

    def take(self) -> bool:
        """Whether it was set since the last time."""
        was_set, self._is_set = self._is_set, False
        return was_set


class SignalGate:
    """Remembers a signal while nothing may be interrupted; `check` raises it where it may.

    Used by the driver from its first moment: an exception in the middle of Ray's start would crash
    Ray and leave its processes behind.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "SignalGate":
        self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self.arm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number


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
