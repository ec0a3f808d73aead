"""`minimax-m2`: turns of MiniMax-M2, which think first, and whose calls are tags of plain words.

    ]~b]user NEWLINE content [e~[ NEWLINE
    ]~b]ai NEWLINE <think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE what it says
        NEWLINE <minimax:tool_call> NEWLINE <invoke name="search"> NEWLINE
        <parameter name="query">words</parameter> NEWLINE </invoke> NEWLINE
        </minimax:tool_call> [e~[ NEWLINE
    ]~b]tool NEWLINE <response>result</response> [e~[ NEWLINE

The prompt opens the thought, so a turn that never closes it is all reasoning. Reasoning is kept;
the template drops it when a user message comes. The tags inside a call are plain words, so a value
cannot hold `</parameter>`: a demonstration that would write one is refused. A result cannot close
its own tag.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence

from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.chatml import kept_open
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import Marked, calls_of, foreign
from agentrl.tokens.formats.thoughts import THINK, THINK_END, written_thought
from agentrl.tokens.formats.values import arguments_of, as_text, named_elements, read_arguments
from agentrl.tokens.spans import Piece

__all__ = ["MiniMaxM2Format"]

_BEGIN, _ROLE, _END = "]~!b[", "]~b]", "[e~["
_CALLS, _CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
_SYSTEM = "You are a helpful assistant."
_TOOLS_HEAD = (
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
)
_TOOLS_TAIL = (
    "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n"
    f'{_CALLS}\n<invoke name="tool-name-1">\n'
    '<parameter name="param-key-1">param-value-1</parameter>\n'
    f'<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n{_CALLS_END}'
)
_INVOKE = ('<invoke name="', '">', "</invoke>")
_PARAMETER = ('<parameter name="', '">', "</parameter>")
_CALL_IS = (
    'a tool call is <invoke name="...">, for each argument <parameter name="...">, its value and '
    "</parameter>, and </invoke>"
)
#: How a result may not close its own tag.
_CLOSING = re.compile("</(?=response)", re.IGNORECASE)


class MiniMaxM2Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "minimax-m2"
    MARKERS = (_BEGIN, _ROLE, _END, THINK, THINK_END, _CALLS, _CALLS_END)
    OPENER = f"{_ROLE}ai\n{THINK}\n"
    ENDS = (_END,)
    FORBIDDEN = (_ROLE, _BEGIN)

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        yield from self._words(f"{_BEGIN}{_ROLE}system\n")
        if system:
            yield foreign(system)
        else:
            yield from self._words(self.default_system or _SYSTEM)
        if tools:
            yield from self._words(_TOOLS_HEAD)
            for schema in tools:
                yield from self._words("<tool>")
                yield foreign(json.dumps(schema["function"], ensure_ascii=False))
                yield from self._words("</tool>\n")
            yield from self._words(_TOOLS_TAIL)
        yield from self._words(f"{_END}\n")
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        for at, message in enumerate(messages):
            if message.role == "tool":
                follows = at > 0 and messages[at - 1].role == "tool"
                yield from self._words("\n<response>" if follows else f"{_ROLE}tool\n<response>")
                yield foreign(kept_open(self.vocab, message.content, _CLOSING))
                yield from self._words("</response>")
                if at + 1 < len(messages) and messages[at + 1].role == "tool":
                    continue
            else:
                role = "ai" if message.role == "assistant" else "user"
                yield from self._words(f"{_ROLE}{role}\n")
                yield foreign(message.content)
                yield from self._called(calls_of(message))
            yield from self._words(f"{_END}\n")

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        del sampled
        yield from self._words("\n")
        yield from self._messages(messages)

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        if not calls:
            return
        yield from self._words(f"\n{_CALLS}\n")
        for call in calls:
            yield from self._words('<invoke name="')
            yield foreign(call.name)
            yield from self._words('">\n')
            for name, value in arguments_of(call):
                text = as_text(value)
                if "</parameter>" in text:
                    raise EnvError(
                        f"the argument {name} of {call.name} holds </parameter>, its own end"
                    )
                yield from self._words('<parameter name="')
                yield foreign(name)
                yield from self._words('">')
                yield foreign(text)
                yield from self._words("</parameter>\n")
            yield from self._words("</invoke>\n")
        yield from self._words(_CALLS_END)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, said = written_thought(text)
        return f"{thought}\n{THINK_END}\n\n{said}{self._text_of(calls)}"

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        text, *rest = self._parts(ids, (_CALLS, _CALLS_END))
        marks, words = rest[::2], rest[1::2]
        if marks != [_CALLS, _CALLS_END] * (len(marks) // 2):
            raise MalformedCallError(f"calls stand between {_CALLS} and {_CALLS_END}")
        found = [pair for body in words[::2] for pair in _invoked(body, tools)]
        calls = [ToolCall(f"{prefix}{at}", name, raw) for at, (name, raw) in enumerate(found)]
        whole = "".join([text, *words[1::2]])
        return whole.strip("\n") if calls else whole, calls


def _invoked(body: str, tools: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Name and arguments of each call in a block of them."""
    invoked = named_elements(body, _INVOKE)
    if not invoked:
        raise MalformedCallError(_CALL_IS)
    for name, inner in invoked:
        pairs = named_elements(inner, _PARAMETER)
        if pairs is None:
            raise MalformedCallError(_CALL_IS)
        yield name, read_arguments(name, pairs, tools)
