"""`Writers`: messages become tokens, the long ones in a thread, for episodes share the loop."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from agentrl.tokens.chat import CallMessage, Message
from agentrl.tokens.formats.base import ToolSchema

__all__ = ["LONG_CHARS", "Writers", "num_chars"]

#: Characters that are too many to make tokens of between two events: a few milliseconds' work.
LONG_CHARS = 8 * 1024
#: Long texts of a worker that become tokens at once.
MAX_WRITERS = 4

Args = TypeVarTuple("Args")
T = TypeVar("T")


class Writers:
    """Threads for long texts, which no tool or agent that blocks can take."""

    def __init__(self, number: int = MAX_WRITERS) -> None:
        self._limiter = anyio.CapacityLimiter(number)

    async def run(self, chars: int, function: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """`function(*args)`, which encodes so many characters."""
        if chars < LONG_CHARS:
            return function(*args)
        return await anyio.to_thread.run_sync(function, *args, limiter=self._limiter)


def num_chars(messages: Iterable[object], tools: Sequence[ToolSchema] = ()) -> int:
    """Characters that are written for `messages` and `tools`; what is no message counts nothing,
    and is refused by the chat format."""
    num = len(json.dumps(tools)) if tools else 0
    for message in messages:
        if isinstance(message, Message):
            num += len(message.content)
        if isinstance(message, CallMessage):
            num += sum(len(call.arguments) for call in message.calls)
    return num
