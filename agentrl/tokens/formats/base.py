"""What a chat format is: how messages become spans, and how sampled ids become a turn.

A format never re-renders: a prompt is opened once and then only extended, so what the engine
sampled stays in place, id for id. One that has earlier turns read otherwise than they were sampled
(`remembered`) has the episode go on in a new segment, whose prompt they are.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.spans import Span
from agentrl.tokens.vocab import Vocab

__all__ = ["ChatFormat", "ToolSchema", "openers_of", "resumed_of"]

#: A tool as OpenAI's function-calling schema, e.g. of `ToolSpec.to_openai`.
ToolSchema = Mapping[str, Any]


class ChatFormat(Protocol):
    """How turns, observations and tool calls are written as tokens."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def assistant_opener(self) -> tuple[int, ...]:
        """The ids before each turn of the policy; `open_prompt` and `observe` end with them, or
        with one of `other_openers`, where the format has such."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a turn when they are sampled."""
        ...

    def open_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Span]:
        """The prompt up to the first turn. Raises `EnvError` on messages it cannot open."""
        ...

    def observe(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span]:
        """What follows a turn of ids `sampled`, up to the next turn: its end, where the policy did
        not sample one, then `messages`."""
        ...

    def remembered(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span] | None:
        """How a turn of ids `sampled` is read once `messages` have answered it or a later turn;
        None: as it was sampled. What is remembered otherwise begins a new segment of the episode,
        for a stream is never rewritten."""
        ...

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """The ids of a whole turn that says `text` and makes `calls`, its end included, as a
        policy would sample them: a demonstration. Its text is trusted: control tokens that it
        spells are control tokens. Raises `EnvError` on one that would end the turn."""
        ...

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """Read turn number `index` in its ids; `tools` are the names of those that the Env has, for
        a format whose calls look like any other text, and in a run they map to their schemas, for
        one whose arguments do not say their type. Never raises on what a policy may sample."""
        ...


def openers_of(chat: ChatFormat) -> tuple[tuple[int, ...], ...]:
    """All that may stand before a turn. A model may open turns that answer results in a way of
    their own; a format without `other_openers` has one way."""
    return (chat.assistant_opener, *getattr(chat, "other_openers", ()))


def resumed_of(chat: ChatFormat) -> tuple[int, ...]:
    """Ids that say, after an opener, that it opened no turn: where the end of a result opens one,
    and another result follows. A format without `resumed` has none."""
    found: tuple[int, ...] = getattr(chat, "resumed", ())
    return found
