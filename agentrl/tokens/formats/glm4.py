"""`glm4`: turns of GLM-4-0414, and its calls: a name, and below it the arguments as JSON.

    <|user|> NEWLINE content
    <|assistant|> NEWLINE what it says <|assistant|> search NEWLINE {"query": "words"}
    <|observation|> NEWLINE result

A call is a message of the assistant of its own, so a turn that says something first, or makes
several calls, has `<|assistant|>` in its middle. No token ends a turn: the policy samples the
marker of whoever speaks next, and that marker is not written again. Where another speaks than it
has named, both markers stand there.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.marked import Marked, calls_of, foreign
from agentrl.tokens.formats.values import json_arguments
from agentrl.tokens.spans import Author, Piece

__all__ = ["ASSISTANT", "END_OF_TEXT", "MASK", "OBSERVATION", "SOP", "SYSTEM", "USER", "GLM4Format"]

MASK, SOP = "[gMASK]", "<sop>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
OBSERVATION, END_OF_TEXT = "<|observation|>", "<|endoftext|>"
_TOOLS = "\n# 可用工具"
_JSON = "\n在调用上述函数时，请使用 Json 格式表示调用的参数。"
_CALL = re.compile(r"\s*(\S+)[^\S\n]*\n\s*(\{.*)", re.DOTALL)


class GLM4Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments. Later members of the family take their turns
    as it does."""

    NAME = "glm4"
    MARKERS: ClassVar[tuple[str, ...]] = (
        MASK,
        SOP,
        SYSTEM,
        USER,
        ASSISTANT,
        OBSERVATION,
        END_OF_TEXT,
    )
    OPENER = ASSISTANT
    ENDS = (USER, OBSERVATION, END_OF_TEXT)
    FORBIDDEN: ClassVar[tuple[str, ...]] = (SYSTEM, MASK, SOP)

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        yield from self._words(f"{MASK}{SOP}")
        if tools:
            yield from self._words(f"{SYSTEM}{_TOOLS}")
            for schema in tools:
                function = schema["function"]
                yield from self._words("\n\n## ")
                yield foreign(function["name"])
                yield from self._words("\n\n")
                yield foreign(json.dumps(function, ensure_ascii=False, indent=4))
                yield from self._words(_JSON)
        if system is None:
            system = self.default_system
        if system is not None:
            yield from self._words(f"{SYSTEM}\n")
            yield foreign(system)
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        roles = {"tool": OBSERVATION, "user": USER, "assistant": ASSISTANT}
        for message in messages:
            calls = calls_of(message)
            if message.content or not calls:
                yield from self._words(f"{roles[message.role]}\n")
                yield foreign(message.content)
            for call in calls:
                yield from self._words(ASSISTANT)
                yield from self._called([call])

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        for number, call in enumerate(calls):
            yield from self._words(ASSISTANT if number else "")
            yield foreign(call.name)
            yield from self._words("\n")
            yield foreign(call.arguments.decode())

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        spoken = f"\n{text}" if text or not calls else ""
        return f"{spoken}{ASSISTANT if spoken and calls else ''}{self._text_of(calls)}"

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        """A part is a call where a name stands alone on its first line, and `{` below it."""
        del tools
        text, calls = list[str](), list[ToolCall]()
        for part in self._parts(ids, (ASSISTANT,))[::2]:
            found = None if part.startswith("\n") else _CALL.fullmatch(part)
            if found is None:
                text.append(part.removeprefix("\n"))
            else:
                raw = json_arguments(found[2], found[1])
                calls.append(ToolCall(f"{prefix}{len(calls)}", found[1], raw))
        return "\n".join(text), calls

    # ---- who speaks next ----

    def _ended(self, sampled: Sequence[int]) -> Iterator[Piece]:
        """The next marker is the end."""
        return iter(())

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        first, *rest = self._messages(messages) if messages else [None]
        named = bool(sampled) and first is not None and self._is_marker(first, sampled[-1])
        return iter([*([] if named or first is None else [first]), *rest])

    def _is_marker(self, piece: Piece, id_: int) -> bool:
        return piece.author is Author.CONTROL and self.vocab.control[piece.text] == id_

    def _end(self, calls: Sequence[ToolCall]) -> str:
        return OBSERVATION if calls else USER
