"""Where user code ends and agentrl begins: what an error says, and whose a cancellation is.

User code may raise anything: SystemExit, KeyboardInterrupt, and a CancelledError, which it gets by
awaiting a task that was cancelled. Let through, that would end the worker; taken for an error, a
real cancellation would be lost. `Boundary` tells the two apart by the state of the running task and
by who hears signals, never by the exception.
"""

import asyncio
import signal

import anyio
import anyio.lowlevel

from agentrl.user_traceback import place_of
from agentrl.visible import error_text

__all__ = ["MAX_ERROR_CHARS", "Boundary", "describe", "sendable_text"]

#: Characters of an error text that are kept.
MAX_ERROR_CHARS = 2000


class Boundary:
    """Made in the task that will run user code, before it does."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancel_calls = task.cancelling()

    async def take(self, failure: BaseException) -> None:
        """Return when `failure` is user code's own; raise what is meant for the task around it.

        That is a cancellation of a scope around the current point (also where user code turned it
        into another error), `Task.cancel` since the boundary was made, an interrupt that a signal
        may have raised, and the end of a coroutine that nobody runs any more.
        """
        if isinstance(failure, GeneratorExit) and not self._is_running():
            raise failure
        if isinstance(failure, KeyboardInterrupt) and self._may_be_a_signal_s():
            raise failure
        # raised anew: a scope swallows its own cancellation, not one that user code made
        await anyio.lowlevel.checkpoint_if_cancelled()
        if isinstance(failure, asyncio.CancelledError) and self._cancelled_by_hand():
            raise failure

    def _cancelled_by_hand(self) -> bool:
        return self._task.cancelling() > self._cancel_calls

    def _is_running(self) -> bool:
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:  # no loop runs
            return False

    def _may_be_a_signal_s(self) -> bool:
        """asyncio's handler cancels the main task before it raises; Python's own says nothing, so
        where that one is in place it is believed. A worker has neither."""
        heard = signal.getsignal(signal.SIGINT)
        return heard is signal.default_int_handler or self._cancelled_by_hand()


def describe(failure: BaseException) -> str:
    """Class, message and line of an error that user code raised, fit for a report."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if isinstance(failure, asyncio.CancelledError):
        name = type(failure).__name__
        return f"{name}: cancelled from inside, e.g. by awaiting a task that was cancelled"
    place = place_of(failure)
    where = sendable_text(f" ({place})") if place else ""
    return sendable_text(error_text(failure), MAX_ERROR_CHARS - len(where)) + where


def sendable_text(text: str, max_chars: int = MAX_ERROR_CHARS) -> str:
    """`text` as valid UTF-8 (a lone surrogate becomes `?`), cut to `max_chars`."""
    if len(text) > max_chars:
        text = f"{text[: max_chars - 3]}..."
    return text.encode("utf-8", "replace").decode("utf-8")
