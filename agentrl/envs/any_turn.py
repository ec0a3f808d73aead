"""Turns that any policy may sample: what an Env is tried with (`contract`).

`turns` are single ones, `endless` those of policies that never change their mind.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.envs.hostile import HOSTILE
from agentrl.envs.messages import AssistantTurn, ToolCall
from agentrl.tools.example import arguments_for
from agentrl.tools.tool import Tool

__all__ = ["ANSWER", "endless", "turns"]

#: Characters of arguments, and of an answer, in a message.
_MAX_ARGUMENTS, _MAX_ANSWER = 100, 40


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
            cut = _cut(shown, _MAX_ARGUMENTS)
            yield f"a call of {name} with {shown[:_MAX_ARGUMENTS]}{cut}", _call(name, arguments)
        yield f"a call of {name} without arguments", _call(name, b"{}")
        yield f"a call of {name} whose arguments are no JSON", _call(name, b"{oops")
        yield f"a call of {name} with an argument too many", _call(name, b'{"no_such": 1}')
    for text in HOSTILE:
        yield f"the answer {text[:_MAX_ANSWER]!r}{_cut(text, _MAX_ANSWER)}", _turn(text)


def endless(tools: Mapping[str, Tool[Any]]) -> Iterator[tuple[str, Sequence[AssistantTurn]]]:
    """Policies that go on as they began, each with the turns that it takes in rotation."""
    made = {name: arguments_for(tool, odd=HOSTILE[0]) for name, tool in tools.items()}
    calls = [_call(name, arguments[0]) for name, arguments in made.items() if arguments]
    yield "a policy that calls tools for ever", calls or [_call("no_such_tool", b"{}")]
    yield "a policy that never calls a tool", [_turn("I do not know.")]
    yield (
        "a policy that answers garbage",
        [
            _turn("<tool_call>", error="a tool call is never closed"),
            _call("no_such_tool", b"{}"),
            *[_call(name, b'{"no_such": 1}') for name in tools],
            _turn(""),
            _turn(HOSTILE[0]),
            _turn("I think that", finish="length"),
        ],
    )


def _cut(text: str, max_chars: int) -> str:
    """The sign that more of a text follows."""
    return f"... ({len(text)} characters)" if len(text) > max_chars else ""


def _turn(text: str, error: str | None = None, finish: str = "stop") -> AssistantTurn:
    return AssistantTurn(text, [], error, finish, 0)


def _call(name: str, arguments: bytes) -> AssistantTurn:
    return AssistantTurn("", [ToolCall("call_0_0", name, arguments)], None, "stop", 0)


#: A turn that calls nothing.
ANSWER = _turn("42")
