"""Where user code ends and agentrl begins: what an error says, and whose a cancellation is.

User code may raise anything: SystemExit, KeyboardInterrupt, and a CancelledError, which it gets by
awaiting a task that was cancelled. Let through, that would end the worker; taken for an error, a
real cancellation would be lost. `Boundary` tells the two apart by the state of the running task and
by who hears signals, never by the exception. `isolated` runs user code in a task of its own, so
that code which cancels its task, or leaves a scope open, hurts no other.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.lowlevel
import msgspec

from agentrl.envs.env import Env
from agentrl.errors import EnvError
from agentrl.user_traceback import place_of
from agentrl.visible import error_text

__all__ = [
    "CLOSE_TIMEOUT_S",
    "MAX_ERROR_CHARS",
    "Boundary",
    "Raised",
    "describe",
    "isolated",
    "sendable_text",
]

_LOG = logging.getLogger(__name__)

#: Characters of an error text that are kept.
MAX_ERROR_CHARS = 2000
#: Seconds that an Env's `close` may take, shielded from every cancellation.
CLOSE_TIMEOUT_S = 10.0

T = TypeVar("T")


class Boundary:
    """Made in the task that will run user code, before it does."""

    def __init__(self, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancel_calls = task.cancelling()
        self._close_timeout_s = close_timeout_s

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

    async def close(self, env: Env, whose: str) -> None:
        """Close the Env of `whose`, as in `episode 00000001/0#0`. What goes wrong is logged, and
        what came before it stands. Raises only what `take` does."""
        with anyio.move_on_after(self._close_timeout_s, shield=True) as deadline:
            try:
                await env.close()
            except BaseException as failure:
                await self.take(failure)
                _LOG.warning("%s: its Env's close raised %s", whose, describe(failure))
        if deadline.cancelled_caught:
            _LOG.warning("%s: its Env's close was cut after %g s", whose, self._close_timeout_s)

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


class Raised(msgspec.Struct, frozen=True):
    """What user code raised instead of returning."""

    failure: BaseException


async def isolated(
    work: Callable[[Boundary], Awaitable[T]],
    whose: str,
    close_timeout_s: float = CLOSE_TIMEOUT_S,
) -> T | Raised:
    """What `work` returns or raises: the user code of `whose`, in a task of its own, with the
    boundary of that task. Raises only a cancellation of the task that calls it, or an interrupt."""
    found: list[T | Raised] = []

    async def run() -> None:
        boundary = Boundary(close_timeout_s)
        try:
            found.append(await work(boundary))
        except BaseException as failure:
            await boundary.take(failure)
            found.append(Raised(failure))

    boundary = Boundary()
    try:
        async with anyio.create_task_group() as alone:
            alone.start_soon(run)
    except BaseException as failure:
        await boundary.take(failure)
        _LOG.exception("%s broke out of its task", whose)
        found.append(Raised(failure))
    if not found:
        return Raised(EnvError(f"{whose} cancelled the task that it runs in"))
    return found[0]


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
