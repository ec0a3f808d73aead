"""`qwen3-5`: Qwen3.5's turns, which think first, with the calls of Qwen3-Coder.

    <think> NEWLINE why NEWLINE </think> NEWLINE NEWLINE what it says
        NEWLINE NEWLINE <tool_call> ... </tool_call> <|im_end|>

The prompt opens the thought, so a turn that never closes it is all reasoning. Reasoning is kept, as
by the later template with `preserve_thinking`; without it a template drops it when a user message
comes. A turn that a prompt brings has none. Tools stand before the system message, and messages are
trimmed, as by the template.
"""

import json
from collections.abc import Collection, Iterator, Sequence

import msgspec

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.chatml import START
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tokens.formats.qwen3_coder import Qwen3CoderFormat
from agentrl.tokens.formats.thoughts import THINK, THINK_END, set_apart, written_thought
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["Qwen35Format"]


class Qwen35Format(Qwen3CoderFormat):
    """A `ChatFormat`; see `ChatML` for its arguments. Raises `ConfigError` also when `vocab` lacks
    the markers of a thought."""

    OPENS_THOUGHT = True

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        vocab.require((THINK, THINK_END), by="the chat format qwen3-5")
        super().__init__(
            vocab, name="qwen3-5", tools_in_prompt=tools_in_prompt, default_system=default_system
        )

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `QwenFormat`; a thought is `set_apart`."""
        return set_apart(super().parse(sampled, index=index, tools=tools))

    def _system(self, content: str | None, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        author = Author.FORMAT if content is None else Author.FOREIGN
        said = self.default_system if content is None else content.strip()
        if said is None and not tools:
            return
        yield Piece(Author.CONTROL, START)
        yield Piece(Author.FORMAT, "system\n")
        if tools:
            yield from self._tools(tools)
        if tools and said:
            yield Piece(Author.FORMAT, "\n\n")
        if said:
            yield Piece(author, said)
        yield from self._end()

    def _told(self, schema: ToolSchema) -> str:
        return json.dumps(schema, ensure_ascii=False)

    def _message(self, message: Message) -> Iterator[Piece]:
        yield from super()._message(_trimmed(message))

    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        return QwenFormat._result(self, _trimmed(message), first=first)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A turn that says nothing of its thoughts has an empty one."""
        thought, said = written_thought(text)
        return f"{thought}\n{THINK_END}\n\n{super()._written(said, calls)}"


def _trimmed(message: Message) -> Message:
    return msgspec.structs.replace(message, content=message.content.strip())
