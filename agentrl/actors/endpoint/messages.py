"""The messages of a chat request, in OpenAI's words, as a chat format takes them.

What the system says first becomes one message. Whatever an agent has made of its history, it stays
foreign text: words of an assistant message are no sampled tokens, its calls are not run.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.errors import ChatError
from agentrl.tokens.chat import CallMessage, Message, ToolCall

__all__ = ["Said", "read_messages"]

_SYSTEM = ("system", "developer")


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""


class Said(msgspec.Struct):
    """A message as it is sent."""

    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


def read_messages(said: Sequence[Said]) -> tuple[Message, ...]:
    """The messages, or ChatError for what no chat format can write."""
    if not said:
        raise ChatError("messages is empty; a prompt needs at least one", param="messages")
    first = next((at for at, each in enumerate(said) if each.role not in _SYSTEM), len(said))
    head = [Message.system("\n\n".join(map(_text, said[:first])))] if first else []
    return (*head, *(_message(at, each) for at, each in enumerate(said[first:], first)))


def _message(at: int, said: Said) -> Message:
    where = f"messages[{at}]"
    match said.role:
        case "user":
            return Message.user(_text(said))
        case "assistant":
            calls = tuple(_call(call) for call in said.tool_calls or ())
            return CallMessage("assistant", _text(said), calls=calls)
        case "tool":
            return Message.tool(_text(said), said.tool_call_id)
        case "system" | "developer":
            raise ChatError(
                f"{where} is a {said.role} message; the chat format takes those only before all "
                "others: say it as the user",
                param="messages",
            )
        case _:
            raise ChatError(f"{where} has the unknown role {said.role!r}", param="messages")


def _text(said: Said) -> str:
    if not isinstance(said.content, list):
        return said.content or ""
    if other := sorted({part.type for part in said.content} - {"text", "refusal"}):
        raise ChatError(
            f"a {said.role} message holds {', '.join(other)}; only text is read", param="messages"
        )
    return "\n".join(part.text for part in said.content if part.type == "text")


def _call(call: _Call) -> ToolCall:
    """A call of the prompt. Its arguments are JSON, if only a JSON string of what they are."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        raw = arguments.encode("utf-8", "replace")
        try:
            msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            raw = msgspec.json.encode(raw.decode())
    else:
        raw = json.dumps(arguments or {}, ensure_ascii=False).encode("utf-8", "replace")
    return ToolCall(call.id, call.function.name, raw)
