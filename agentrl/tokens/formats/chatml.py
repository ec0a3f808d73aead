"""ChatML turns, the frame that several formats share.

    <|im_start|>user NEWLINE content <|im_end|> NEWLINE

A format that stands in this frame says how it tells a model of its tools, how a turn makes calls,
and how results are shown. The text of a control token inside a message stays text.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from agentrl.errors import EnvError
from agentrl.tokens.chat import CallMessage, Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.spans import Author, Piece, Span, encode_pieces
from agentrl.tokens.vocab import Vocab

__all__ = ["END", "END_OF_TEXT", "START", "ChatML", "kept_open"]

START = "<|im_start|>"
END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"


class ChatML(ABC):
    """The base of a `ChatFormat`.

    `name`: the format's. `tools_in_prompt`: describe the tools in the system message (a model
    trained for fixed tools needs no such words). `default_system`: system message of a prompt that
    has none. `reserved`: further tokens that no policy may sample.
    Raises `ConfigError` when `vocab` lacks the turn markers.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        name: str,
        tools_in_prompt: bool,
        default_system: str | None,
        reserved: Collection[str] = (),
    ) -> None:
        vocab.require((START, END), by=f"the chat format {name}")
        self.vocab = vocab
        self.tools_in_prompt = tools_in_prompt
        self.default_system = default_system
        (opener,) = encode_pieces(vocab, self._opener())
        self.assistant_opener = tuple(opener.ids)
        # An opener ends the turn too: the policy cannot go on in another role.
        ends = (END, END_OF_TEXT, START)
        self.stop_ids = tuple(vocab.control[token] for token in ends if token in vocab.control)
        self._reserved = {
            vocab.control[token]: token for token in (*ends, *reserved) if token in vocab.control
        }

    # ---- what a format says ----

    @abstractmethod
    def _tools(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        """What the system message says of the tools."""

    @abstractmethod
    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        """One result in a user turn; the `first` opens it. Neighbours share a turn."""

    @abstractmethod
    def _called(self, call: ToolCall) -> str:
        """A call as a policy would write it."""

    def _made(self, call: ToolCall) -> Iterator[Piece]:
        """A call that a message of the prompt made: its markers are real, its words foreign."""
        yield Piece(Author.FOREIGN, self._called(call))

    @abstractmethod
    def parse(
        self, sampled: Sequence[int], *, index: int = 0, tools: Collection[str] = ()
    ) -> ParsedTurn:
        """See `ChatFormat`."""

    # ---- the frame ----

    def open_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> list[Span]:
        """See `ChatFormat`. A system message may only come first."""
        if not messages:
            raise EnvError("reset returned no messages; a prompt needs at least one")
        pieces: list[Piece] = []
        system = messages[0].content if messages[0].role == "system" else None
        rest = messages if system is None else messages[1:]
        pieces += self._system(system, tools if self.tools_in_prompt else ())
        pieces += self._messages(rest)
        pieces += self._opener()
        return encode_pieces(self.vocab, pieces)

    def observe(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span]:
        """See `ChatFormat`."""
        ended = bool(sampled) and sampled[-1] == self.vocab.control[END]
        pieces = [] if ended else [Piece(Author.CONTROL, END)]
        pieces.append(Piece(Author.FORMAT, "\n"))
        pieces += self._messages(messages)
        pieces += self._opener()
        return encode_pieces(self.vocab, pieces)

    def remembered(self, messages: Sequence[Message], sampled: Sequence[int]) -> list[Span] | None:
        """See `ChatFormat`."""
        del messages, sampled
        return None

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """See `ChatFormat`."""
        ids = self.vocab.encode_trusted(self._written(text, calls))
        if found := [id_ for id_ in ids if id_ in self.stop_ids]:
            raise EnvError(f"a demonstrated turn holds the control ids {found}, which end a turn")
        return [*ids, self.vocab.control[END]]

    # ---- for formats ----

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """A demonstrated turn, without its end."""
        return "\n".join([*([text] if text else []), *map(self._called, calls)])

    def _said(self, sampled: Sequence[int]) -> list[int]:
        """A turn's ids without the one that ended it."""
        ids = list(sampled)
        if ids and ids[-1] in self.stop_ids and ids[-1] != self.vocab.control[START]:
            del ids[-1]
        return ids

    def _forbidden(self, ids: Sequence[int]) -> str | None:
        """The first reserved token in a turn."""
        return next((self._reserved[id_] for id_ in ids if id_ in self._reserved), None)

    def _token(self, text: str) -> Piece:
        """A marker that some vocabularies have as a control token and others as plain words."""
        return Piece(Author.CONTROL if text in self.vocab.control else Author.FORMAT, text)

    # ---- inside ----

    def _opener(self) -> Iterator[Piece]:
        yield Piece(Author.CONTROL, START)
        yield Piece(Author.FORMAT, "assistant\n")

    def _end(self) -> Iterator[Piece]:
        yield Piece(Author.CONTROL, END)
        yield Piece(Author.FORMAT, "\n")

    def _system(self, content: str | None, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        if content is None and self.default_system is None and not tools:
            return
        yield Piece(Author.CONTROL, START)
        yield Piece(Author.FORMAT, "system\n")
        if content is not None:
            yield Piece(Author.FOREIGN, content)
        elif self.default_system is not None:
            yield Piece(Author.FORMAT, self.default_system)
        if tools:
            if content is not None or self.default_system is not None:
                yield Piece(Author.FORMAT, "\n\n")
            yield from self._tools(tools)
        yield from self._end()

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        in_results = False
        for message in messages:
            if in_results and message.role != "tool":
                yield from self._end()
            if message.role == "tool":
                if not in_results:
                    yield Piece(Author.CONTROL, START)
                yield from self._result(message, first=not in_results)
            else:
                yield from self._message(message)
            in_results = message.role == "tool"
        if in_results:
            yield from self._end()

    def _message(self, message: Message) -> Iterator[Piece]:
        if message.role == "system":
            raise EnvError("a system message may only be the first of a prompt")
        yield Piece(Author.CONTROL, START)
        yield Piece(Author.FORMAT, f"{message.role}\n")
        yield Piece(Author.FOREIGN, message.content)
        calls = message.calls if isinstance(message, CallMessage) else ()
        for number, call in enumerate(calls):
            if message.content or number:
                yield Piece(Author.FORMAT, "\n")
            yield from self._made(call)
        yield from self._end()


def kept_open(vocab: Vocab, content: str, closing: re.Pattern[str]) -> str:
    """`content` of a tag of plain words, which it may not close: `closing` matches the `</` of what
    would, as the tokenizer reads it."""
    read = vocab.normalized(content)
    return closing.sub("< /", read) if closing.search(read) else content
