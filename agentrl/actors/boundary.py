"""Where user code ends and agentrl begins: what an error says, and whose a cancellation is.

User code may raise anything, a CancelledError too: it gets one by awaiting a task that was
cancelled. Let through, that would end the worker; taken for an error, a real cancellation would be
lost. `Boundary` tells the two apart by the state of the running task, never by the exception.
"""

import asyncio

import anyio
import anyio.lowlevel

from agentrl.envs.blame import place_of

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
        into another error), `Task.cancel` since the boundary was made, and an interrupt.
        """
        if isinstance(failure, KeyboardInterrupt | GeneratorExit):
            raise failure
        # raised anew: a scope swallows its own cancellation, not one that user code made
        await anyio.lowlevel.checkpoint_if_cancelled()
        if isinstance(failure, asyncio.CancelledError) and self._cancelled_by_hand():
            raise failure

    def _cancelled_by_hand(self) -> bool:
        return self._task.cancelling() > self._cancel_calls


def describe(failure: BaseException) -> str:
    """Class, message and line of an error that user code raised, fit for a report."""
    name = type(failure).__name__
    if isinstance(failure, asyncio.CancelledError):
        return f"{name}: cancelled from inside, e.g. by awaiting a task that was cancelled"
    try:
        place = place_of(failure)
        where = sendable_text(f" ({place})") if place else ""
        return sendable_text(f"{name}: {failure}", MAX_ERROR_CHARS - len(where)) + where
    except Exception:
        return f"{name} (its message cannot be read)"


def sendable_text(text: str, max_chars: int = MAX_ERROR_CHARS) -> str:
    """`text` as valid UTF-8 (a lone surrogate becomes `?`), cut to `max_chars`."""
    if len(text) > max_chars:
        text = f"{text[: max_chars - 3]}..."
    return text.encode("utf-8", "replace").decode("utf-8")
