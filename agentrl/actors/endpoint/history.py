"""When two histories are the same: a digest of what messages say, not of how they are written.

A client sends back what it was answered, and changes its look: no content for an empty one, keys
in another order, other white space around the text or in the JSON of a call's arguments, the
thought left out or put into the text. None of that makes another history. Other words do, other
tools, and another role.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from agentrl.tokens.chat import CallMessage, Message
from agentrl.tokens.formats.base import ToolSchema

__all__ = ["history_key", "num_answered"]

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


def history_key(role: str, tools: Sequence[ToolSchema], messages: Iterable[Message]) -> bytes:
    """A digest of 32 bytes."""
    digest = hashlib.blake2b(_spelled((role, tools)), digest_size=32)
    for message in messages:
        digest.update(_spelled(_meaning(message)))
    return digest.digest()


def num_answered(messages: Sequence[Message]) -> int:
    """How many of the messages the model has seen or said: those up to its last answer."""
    turns = [at for at, message in enumerate(messages) if message.role == "assistant"]
    return turns[-1] + 1 if turns else 0


def _spelled(value: object) -> bytes:
    """JSON in one spelling, closed by a character that stands in none; of any text, a lone
    surrogate too."""
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _meaning(message: Message) -> tuple[object, ...]:
    content = message.content
    if message.role != "assistant":
        return message.role, content, message.tool_call_id
    text = _THOUGHT.sub("", content, count=1) if _THOUGHT.match(content) else content
    calls = message.calls if isinstance(message, CallMessage) else ()
    return "assistant", text.strip(), [(c.id, c.name, _plain(c.arguments)) for c in calls]


def _plain(arguments: bytes) -> str:
    """The JSON of a call's arguments in one spelling."""
    text = arguments.decode("utf-8", "replace")
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()
