"""The frame of the formats whose models mark each role with control tokens of their own.

A format that stands in this frame names its markers, and says how a prompt begins, how messages
follow and how a turn makes calls. The text of a control token inside a message stays text, and only
control ids are markers: a turn that spells one in other tokens has written text.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar

from agentrl.errors import EnvError
from agentrl.tokens.chat import CallMessage, Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.thoughts import THINK, split_thought
from agentrl.tokens.spans import Author, Piece, Span, encode_pieces
from agentrl.tokens.vocab import Vocab

__all__ = ["OURS", "Marked", "calls_of", "foreign"]

#: An id that `parse` gives a call: its turn and its place there.
OURS = re.compile(r"call_(\d{1,6})_(\d{1,3})")


class Marked(ABC):
    """The base of a `ChatFormat`.

    NAME: the format's. MARKERS: control tokens that it needs; TOOL_MARKERS: those of them that only
    tools need, without which `lacks_calls` says so, and a prompt with tools is refused. OPENER:
    what stands before a turn; OTHER_OPENERS: what stands there instead, after messages for which
    `_opened_by` says so; RESUMED: what says, after an opener, that messages go on. ENDS: tokens
    that end a turn; the first is written where the policy sampled none. FORBIDDEN: tokens that no
    policy may sample; they end a turn too. `tools_in_prompt`, `default_system`: see `ChatML`.
    Raises `ConfigError` when `vocab` lacks a marker.
    """

    NAME: ClassVar[str]
    MARKERS: ClassVar[tuple[str, ...]]
    TOOL_MARKERS: ClassVar[tuple[str, ...]] = ()
    OPENER: ClassVar[str]
    OTHER_OPENERS: ClassVar[tuple[str, ...]] = ()
    RESUMED: ClassVar[tuple[str, ...]] = ()
    ENDS: ClassVar[tuple[str, ...]]
    FORBIDDEN: ClassVar[tuple[str, ...]]

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        needed = [marker for marker in self.MARKERS if marker not in self.TOOL_MARKERS]
        vocab.require(needed, by=f"the chat format {self.NAME}")
        lacks = [marker for marker in self.TOOL_MARKERS if marker not in vocab.control]
        self.lacks_calls = (
            f"{vocab.source} has no control tokens {' '.join(lacks)}" if lacks else ""
        )
        self.vocab = vocab
        self.tools_in_prompt = tools_in_prompt
        self.default_system = default_system
        self.assistant_opener = self._opener_ids(self.OPENER)
        others = () if lacks else self.OTHER_OPENERS
        self.other_openers = tuple(map(self._opener_ids, others))
        self.resumed = self._present(self.RESUMED)
        self._ends = self._present(self.ENDS)
        self._forbidden = self._present(self.FORBIDDEN)
        self.stop_ids = (*self._ends, *self._forbidden)

    # ---- what a format says ----

    @abstractmethod
    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        """The prompt up to the opener. `messages` are those after the system message."""

    @abstractmethod
    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Messages that follow a finished turn or a message."""

    @abstractmethod
    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        """Calls as a policy would write them; names and arguments are foreign."""

    @abstractmethod
    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        """Text and calls of what was said. Raises `MalformedCallError`."""

    # ---- the frame ----

    def open_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Span]:
        """See `ChatFormat`. A system message may only come first."""
        if not messages:
            raise EnvError("reset returned no messages; a prompt needs at least one")
        first = messages[0].content if messages[0].role == "system" else None
        rest = messages if first is None else messages[1:]
        if any(message.role == "system" for message in rest):
            raise EnvError("a system message may only be the first of a prompt")
        if self.lacks_calls and (tools or any(map(calls_of, rest))):
            raise EnvError(f"tools, and no way to call them: {self.lacks_calls}")
        shown = tools if self.tools_in_prompt else ()
        prompt = self._prompt(first, rest, shown)
        return encode_pieces(self.vocab, [*prompt, *self._opener(rest)])

    def observe(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span]:
        """See `ChatFormat`."""
        if any(message.role == "system" for message in messages):
            raise EnvError("a system message may only be the first of a prompt")
        pieces = [*self._ended(sampled), *self._answer(messages, sampled)]
        return encode_pieces(self.vocab, [*pieces, *self._opener(messages)])

    def remembered(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span] | None:
        """See `ChatFormat`."""
        del messages, sampled
        return None

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """See `ChatFormat`."""
        if calls and self.lacks_calls:
            raise EnvError(f"no way to write calls: {self.lacks_calls}")
        ids = self.vocab.encode_trusted(self._written(text, calls))
        if found := [id_ for id_ in ids if id_ in self.stop_ids]:
            raise EnvError(f"a demonstrated turn holds the control ids {found}, which end a turn")
        return [*ids, self.vocab.control[self._end(calls)]]

    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `ChatFormat`. Text up to the last `</think>`, and after a `<think>` that is not
        closed, is reasoning; calls in it are not calls."""
        ids = self._said(sampled)
        thought, said = self._thought(ids)
        reasoning = self.vocab.decode(thought).strip("\n")
        if found := [id_ for id_ in ids if id_ in self._forbidden]:
            error = f"{self.vocab.decode(found[:1])} is not yours to write"
            return ParsedTurn(self.vocab.decode(said), [], error, reasoning)
        try:
            text, calls = self._read(said, f"call_{index}_", tools)
        except MalformedCallError as error:
            return ParsedTurn(self.vocab.decode(said), [], str(error), reasoning)
        has_thought = len(said) < len(ids)
        return ParsedTurn(text.lstrip("\n") if has_thought else text, calls, None, reasoning)

    # ---- for formats ----

    def _thought(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of the reasoning in what was said, and those of the rest."""
        return split_thought(self.vocab, ids, opened=THINK in self.OPENER)

    def _opened_by(self, role: str) -> str:
        """What opens a turn after a message of `role`."""
        del role
        return self.OPENER

    def _ended(self, sampled: Sequence[int]) -> Iterator[Piece]:
        """The end of a turn, where the policy has not sampled one."""
        if not sampled or sampled[-1] not in self._ends:
            yield Piece(Author.CONTROL, self.ENDS[0])

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        """What answers a turn of ids `sampled`, which has ended."""
        del sampled
        yield from self._messages(messages)

    def _end(self, calls: Sequence[ToolCall]) -> str:
        """The token that ends a demonstrated turn."""
        del calls
        return self.ENDS[0]

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A demonstrated turn, without its end."""
        return text + (self._text_of(calls) if calls else "")

    def _text_of(self, calls: Sequence[ToolCall]) -> str:
        return "".join(piece.text for piece in self._called(calls))

    def _words(self, text: str) -> Iterator[Piece]:
        """The format's own text; the markers that it spells are markers."""
        for part in re.split(f"({'|'.join(map(re.escape, self.MARKERS))})", text):
            if part:
                author = Author.CONTROL if part in self.MARKERS else Author.FORMAT
                yield Piece(author, part)

    def _said(self, sampled: Sequence[int]) -> list[int]:
        """A turn's ids without the one that ended it."""
        ids = list(sampled)
        return ids[:-1] if ids and ids[-1] in self._ends else ids

    def _parts(self, ids: Sequence[int], marks: Iterable[str]) -> list[str]:
        """Text, marker, text, marker, ..., text: `ids` cut at those of `marks`."""
        control = {self.vocab.control[mark]: mark for mark in marks if mark in self.vocab.control}
        parts, start = [], 0
        for at, id_ in enumerate(ids):
            if id_ in control:
                parts += [self.vocab.decode(ids[start:at]), control[id_]]
                start = at + 1
        return [*parts, self.vocab.decode(ids[start:])]

    def _opener(self, messages: Sequence[Message]) -> Iterator[Piece]:
        return self._words(self._opened_by(messages[-1].role if messages else ""))

    def _opener_ids(self, text: str) -> tuple[int, ...]:
        (span,) = encode_pieces(self.vocab, self._words(text))
        return tuple(span.ids)

    def _present(self, tokens: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.vocab.control[token] for token in tokens if token in self.vocab.control)


def foreign(text: str) -> Piece:
    """A piece of somebody else's text."""
    return Piece(Author.FOREIGN, text)


def calls_of(message: Message) -> Sequence[ToolCall]:
    """The calls that a message of a prompt made."""
    return message.calls if isinstance(message, CallMessage) else ()
