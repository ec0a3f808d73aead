"""`qwen`: ChatML turns with Hermes tool calls, as Qwen2.5 writes them.

The ids equal those of the rendered chat template, for any content without control text; tests
compare them with `transformers`. Three things differ by intent: the text of a control token inside
a message stays text; reasoning of earlier turns is kept, for nothing sampled is ever rewritten; and
where the tags of a result are plain words, as in Qwen2.5, a result cannot close its own.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import ClassVar

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.chatml import ChatML, kept_open
from agentrl.tokens.formats.hermes import (
    CLOSE,
    OPEN,
    MalformedCallError,
    read_calls,
    read_json_call,
)
from agentrl.tokens.formats.thoughts import THINK, split_thought
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["QwenFormat"]

_RESULT = "<tool_response>"
_RESULT_END = "</tool_response>"
#: How a result may not close its own tag.
_CLOSING = re.compile("</(?=tool_response)", re.IGNORECASE)

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    f"within {OPEN}{CLOSE} XML tags:\n{OPEN}\n"
    '{"name": <function-name>, "arguments": <args-json-object>}'
    f"\n{CLOSE}"
)


class QwenFormat(ChatML):
    """A `ChatFormat`; see `ChatML` for its arguments. `OPENS_THOUGHT`: the prompt does, so that a
    turn that closes none is all reasoning."""

    OPENS_THOUGHT: ClassVar[bool] = False

    def __init__(
        self,
        vocab: Vocab,
        *,
        name: str = "qwen",
        tools_in_prompt: bool = True,
        default_system: str | None = None,
    ) -> None:
        super().__init__(
            vocab,
            name=name,
            tools_in_prompt=tools_in_prompt,
            default_system=default_system,
            reserved=(_RESULT, _RESULT_END),
        )

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `ChatFormat`. Text up to the last `</think>`, and after a `<think>` that is not
        closed, is reasoning; calls in it are not calls."""
        ids = self._said(sampled)
        thought, said = split_thought(self.vocab, ids, opened=self.OPENS_THOUGHT)
        reasoning = self.vocab.decode(thought)
        try:
            if token := self._forbidden(ids):
                raise MalformedCallError(f"{token} is not yours to write")
            read = partial(self._read, tools=tools)
            text, calls = read_calls(self.vocab, said, f"call_{index}_", read)
        except MalformedCallError as error:
            return ParsedTurn(self.vocab.decode(said), [], str(error), reasoning)
        return ParsedTurn(text, calls, None, reasoning)

    def _opener(self) -> Iterator[Piece]:
        yield from super()._opener()
        if self.OPENS_THOUGHT:
            yield self._token(THINK)
            yield Piece(Author.FORMAT, "\n")

    def _read(self, body: str, *, tools: Collection[str]) -> tuple[str, bytes]:
        """Name and arguments of what stands between the marks of a call."""
        del tools
        return read_json_call(body)

    def _body(self, call: ToolCall) -> str:
        """What stands between the marks of a call."""
        name = json.dumps(call.name, ensure_ascii=False)
        return f'\n{{"name": {name}, "arguments": {call.arguments.decode()}}}\n'

    def _called(self, call: ToolCall) -> str:
        return f"{OPEN}{self._body(call)}{CLOSE}"

    def _made(self, call: ToolCall) -> Iterator[Piece]:
        yield self._token(OPEN)
        yield Piece(Author.FOREIGN, self._body(call))
        yield self._token(CLOSE)

    def _tools(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        yield Piece(Author.FORMAT, _TOOLS_HEAD)
        for schema in tools:
            yield Piece(Author.FORMAT, "\n")
            yield Piece(Author.FOREIGN, json.dumps(schema, ensure_ascii=False))
        yield from self._marked(_TOOLS_TAIL)

    def _marked(self, text: str) -> Iterator[Piece]:
        """The format's words, in which the marks of a call are marks."""
        for part in re.split(f"({OPEN}|{CLOSE})", text):
            yield self._token(part) if part in (OPEN, CLOSE) else Piece(Author.FORMAT, part)

    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        if first:
            yield Piece(Author.FORMAT, "user")
        yield Piece(Author.FORMAT, "\n")
        yield self._token(_RESULT)
        yield Piece(Author.FORMAT, "\n")
        is_text = _RESULT_END not in self.vocab.control
        content = kept_open(self.vocab, message.content, _CLOSING) if is_text else message.content
        yield Piece(Author.FOREIGN, content)
        yield Piece(Author.FORMAT, "\n")
        yield self._token(_RESULT_END)
