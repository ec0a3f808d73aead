"""Turns that any policy may sample: what an Env is tried with (`contract`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.envs.hostile import HOSTILE
from agentrl.envs.messages import AssistantTurn, ToolCall
from agentrl.tools.example import arguments_for
from agentrl.tools.tool import Tool

__all__ = ["ANSWER", "turns"]

#: Characters of arguments in a message.
_MAX_SHOWN = 100


def turns(tools: Mapping[str, Tool[Any]]) -> Iterator[tuple[str, AssistantTurn]]:
    """Each with what it is: an answer, silence, calls of each tool, and text that spells more."""
    yield "an answer", ANSWER
    yield "silence", _turn("")
    yield "what cannot be parsed", _turn("<tool_call>", error="a tool call is never closed")
    yield "a call of a tool that is not there", _call("no_such_tool", b"{}")
    yield "a turn that was cut", _turn("I think that", finish="length")
    for name, tool in tools.items():
        for arguments in arguments_for(tool, odd=HOSTILE[0]):
            shown = arguments.decode()
            shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
            yield f"a call of {name} with {shown}", _call(name, arguments)
        yield f"a call of {name} without arguments", _call(name, b"{}")
        yield f"a call of {name} whose arguments are no JSON", _call(name, b"{oops")
        yield f"a call of {name} with an argument too many", _call(name, b'{"no_such": 1}')
    for text in HOSTILE:
        yield f"the answer {text[:40]!r}", _turn(text)


def _turn(text: str, error: str | None = None, finish: str = "stop") -> AssistantTurn:
    return AssistantTurn(text, [], error, finish, 0)


def _call(name: str, arguments: bytes) -> AssistantTurn:
    return AssistantTurn("", [ToolCall("call_0_0", name, arguments)], None, "stop", 0)


#: A turn that calls nothing.
ANSWER = _turn("42")
