"""`glm45`: turns of GLM-4.5 and 4.6, which think, and write each argument of a call for itself.

    <|user|> NEWLINE content
    <|assistant|> NEWLINE <think> why </think> NEWLINE what it says
        NEWLINE <tool_call> name NEWLINE
        <arg_key> query </arg_key> NEWLINE <arg_value> words </arg_value> NEWLINE </tool_call>
    <|observation|> NEWLINE <tool_response> NEWLINE result NEWLINE </tool_response>

Who speaks next is as in `glm4`. Reasoning is kept; the template drops it when a user message comes.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.glm4 import (
    ASSISTANT,
    END_OF_TEXT,
    MASK,
    OBSERVATION,
    SOP,
    SYSTEM,
    USER,
    GLM4Format,
)
from agentrl.tokens.formats.hermes import CLOSE, OPEN, MalformedCallError
from agentrl.tokens.formats.marked import calls_of, foreign
from agentrl.tokens.formats.thoughts import THINK, THINK_END
from agentrl.tokens.formats.values import arguments_of, as_text, read_arguments
from agentrl.tokens.spans import Piece

__all__ = ["GLM45Format"]

_RESULT, _RESULT_END = "<tool_response>", "</tool_response>"
_PAIR = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_TOOLS_HEAD = (
    "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_TOOLS_TAIL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML format:\n"
)


class GLM45Format(GLM4Format):
    """A `ChatFormat`; see `Marked` for its arguments. BREAK: what stands between the parts of a
    turn. UNTHOUGHT: what a turn of a prompt has for its thought."""

    NAME = "glm45"
    MARKERS = (
        *(MASK, SOP, SYSTEM, USER, ASSISTANT, OBSERVATION, END_OF_TEXT),
        *(THINK, THINK_END, OPEN, CLOSE, _RESULT, _RESULT_END, *_PAIR),
    )
    FORBIDDEN = (SYSTEM, ASSISTANT, MASK, SOP, _RESULT, _RESULT_END)
    BREAK: ClassVar[str] = "\n"
    UNTHOUGHT: ClassVar[str] = f"\n{THINK}{THINK_END}"

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        yield from self._words(f"{MASK}{SOP}")
        if tools:
            yield from self._words(f"{SYSTEM}{_TOOLS_HEAD}")
            for schema in tools:
                yield foreign(json.dumps(schema, ensure_ascii=False))
                yield from self._words("\n")
            yield from self._words(_TOOLS_TAIL + self._example())
        if system is None:
            system = self.default_system
        if system is not None:
            yield from self._words(f"{SYSTEM}{self.BREAK}")
            yield foreign(system)
        yield from self._messages(messages)

    def _example(self) -> str:
        pairs = (
            f"{_PAIR[0]}{{arg-key-{n}}}{_PAIR[1]}{self.BREAK}{_PAIR[2]}{{arg-value-{n}}}{_PAIR[3]}"
            for n in (1, 2)
        )
        return self.BREAK.join([f"{OPEN}{{function-name}}", *pairs, "...", CLOSE])

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        role = None
        for message in messages:
            if message.role == "tool":
                begin = "" if role == "tool" else OBSERVATION
                yield from self._words(f"{begin}{self.BREAK}{_RESULT}{self.BREAK}")
                yield foreign(message.content)
                yield from self._words(f"{self.BREAK}{_RESULT_END}")
            elif message.role == "user":
                yield from self._words(f"{USER}{self.BREAK}")
                yield foreign(message.content)
            else:
                yield from self._words(f"{ASSISTANT}{self.UNTHOUGHT}")
                if said := message.content.strip():
                    yield from self._words(self.BREAK)
                    yield foreign(said)
                yield from self._called(calls_of(message))
            role = message.role

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        for call in calls:
            yield from self._words(f"{self.BREAK}{OPEN}")
            yield foreign(call.name)
            yield from self._words(self.BREAK)
            for name, value in arguments_of(call):
                yield from self._words(_PAIR[0])
                yield foreign(name)
                yield from self._words(f"{_PAIR[1]}{self.BREAK}{_PAIR[2]}")
                yield foreign(as_text(value))
                yield from self._words(f"{_PAIR[3]}{self.BREAK}")
            yield from self._words(CLOSE)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, ended, said = text.rpartition(THINK_END)
        thought = thought.removeprefix("\n").removeprefix(THINK).strip() if ended else ""
        said = said.strip() if ended else text
        begin = "" if THINK in self.OPENER else f"{self.BREAK}{THINK}"
        spoken = f"{self.BREAK}{said}" if said else ""
        return f"{begin}{thought}{THINK_END}{spoken}{self._text_of(calls)}"

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        parts = self._parts(ids, (OPEN, CLOSE, *_PAIR))
        text, calls, at = [parts[0]], list[ToolCall](), 1
        while at < len(parts):
            if parts[at] != OPEN:
                raise MalformedCallError(f"{parts[at]} stands without {OPEN}")
            end = next((n for n in range(at + 2, len(parts), 2) if parts[n] in (OPEN, CLOSE)), -1)
            if end < 0 or parts[end] == OPEN:
                raise MalformedCallError(f"{OPEN} is not closed by {CLOSE}")
            name, raw = _call(parts[at + 1 : end], tools)
            calls.append(ToolCall(f"{prefix}{len(calls)}", name, raw))
            text.append(parts[end + 1])
            at = end + 2
        return "".join(text).strip("\n") if calls else "".join(text), calls


def _call(inner: Sequence[str], tools: Collection[str]) -> tuple[str, bytes]:
    """Name and arguments of what stands between the marks of a call."""
    texts, marks = inner[::2], inner[1::2]
    pairs = list(zip(texts[1::4], texts[3::4], strict=False))
    between = [*texts[2::4], *texts[4::4]]
    if list(marks) != [*_PAIR] * len(pairs) or any(map(str.strip, between)):
        raise MalformedCallError(
            "a tool call is its name, then for each argument <arg_key>name</arg_key> and "
            "<arg_value>value</arg_value>"
        )
    name = texts[0].strip()
    return name, read_arguments(name, pairs, tools)
