"""`qwen`: ChatML turns with Hermes tool calls, as Qwen2.5 and Qwen3 write them.

    <|im_start|>user NEWLINE content <|im_end|> NEWLINE

The ids equal those of the rendered chat template, for any content without control text; tests
compare them with `transformers`. Two things differ by intent: the text of a control token inside a
message stays text, and reasoning of earlier turns is kept, for nothing sampled is ever rewritten.
"""

import json
from collections.abc import Iterator, Sequence

from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ParsedTurn, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import CLOSE, OPEN, MalformedCallError, read_calls
from agentrl.tokens.spans import Author, Piece, Span, encode_pieces
from agentrl.tokens.vocab import Vocab

__all__ = ["QwenFormat"]

_START = "<|im_start|>"
_END = "<|im_end|>"
_END_OF_TEXT = "<|endoftext|>"
_RESULT = "<tool_response>"
_RESULT_END = "</tool_response>"
_THINK = "<think>"
_THINK_END = "</think>"

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


class QwenFormat:
    """A `ChatFormat`.

    `tools_in_prompt`: describe the tools in the system message (a model trained for fixed tools
    needs no such words). `default_system`: system message of a prompt that has none.
    Raises `ConfigError` when `vocab` lacks the turn markers.
    """

    def __init__(
        self, vocab: Vocab, *, tools_in_prompt: bool = True, default_system: str | None = None
    ) -> None:
        vocab.require((_START, _END), by="the chat format qwen")
        self.vocab = vocab
        self.tools_in_prompt = tools_in_prompt
        self.default_system = default_system
        (opener,) = encode_pieces(vocab, self._opener())
        self.assistant_opener = tuple(opener.ids)
        # An opener ends the turn too: the policy cannot go on in another role.
        ends = (_END, _END_OF_TEXT, _START)
        self.stop_ids = tuple(vocab.control[token] for token in ends if token in vocab.control)
        self._reserved = {
            vocab.control[token]: token
            for token in (*ends, _RESULT, _RESULT_END)
            if token in vocab.control
        }

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
        ended = bool(sampled) and sampled[-1] == self.vocab.control[_END]
        pieces = [] if ended else [Piece(Author.CONTROL, _END)]
        pieces.append(Piece(Author.FORMAT, "\n"))
        pieces += self._messages(messages)
        pieces += self._opener()
        return encode_pieces(self.vocab, pieces)

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """See `ChatFormat`."""
        parts = [text] if text else []
        for call in calls:
            name = json.dumps(call.name, ensure_ascii=False)
            said = f'{{"name": {name}, "arguments": {call.arguments.decode()}}}'
            parts.append(f"{OPEN}\n{said}\n{CLOSE}")
        ids = self.vocab.encode_trusted("\n".join(parts))
        if found := [id_ for id_ in ids if id_ in self.stop_ids]:
            raise EnvError(f"a demonstrated turn holds the control ids {found}, which end a turn")
        return [*ids, self.vocab.control[_END]]

    def parse(self, sampled: Sequence[int], *, index: int = 0) -> ParsedTurn:
        """See `ChatFormat`. Text up to `</think>` is reasoning; calls in it are not calls."""
        ids = list(sampled)
        if ids and ids[-1] in self.stop_ids and ids[-1] != self.vocab.control[_START]:
            del ids[-1]
        thought, said = self._split_reasoning(ids)
        reasoning = self.vocab.decode(thought)
        try:
            if found := [self._reserved[id_] for id_ in ids if id_ in self._reserved]:
                raise MalformedCallError(f"{found[0]} is not yours to write")
            text, calls = read_calls(self.vocab, said, f"call_{index}_")
        except MalformedCallError as error:
            return ParsedTurn(self.vocab.decode(said), [], str(error), reasoning)
        return ParsedTurn(text, calls, None, reasoning)

    def _split_reasoning(self, ids: list[int]) -> tuple[list[int], list[int]]:
        begin, end = (self.vocab.control.get(token) for token in (_THINK, _THINK_END))
        if end in ids:
            at = ids.index(end)
            return [id_ for id_ in ids[:at] if id_ != begin], ids[at + 1 :]
        if begin in ids:
            at = ids.index(begin)
            return ids[at + 1 :], ids[:at]
        return [], ids

    def _token(self, text: str) -> Piece:
        """A marker that some vocabularies have as a control token and others as plain words."""
        return Piece(Author.CONTROL if text in self.vocab.control else Author.FORMAT, text)

    def _opener(self) -> Iterator[Piece]:
        yield Piece(Author.CONTROL, _START)
        yield Piece(Author.FORMAT, "assistant\n")

    def _end(self) -> Iterator[Piece]:
        yield Piece(Author.CONTROL, _END)
        yield Piece(Author.FORMAT, "\n")

    def _system(self, content: str | None, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        if content is None and self.default_system is None and not tools:
            return
        yield Piece(Author.CONTROL, _START)
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

    def _tools(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        yield Piece(Author.FORMAT, _TOOLS_HEAD)
        for schema in tools:
            yield Piece(Author.FORMAT, "\n")
            yield Piece(Author.FOREIGN, json.dumps(schema, ensure_ascii=False))
        rest = _TOOLS_TAIL
        for marker in (OPEN, CLOSE, OPEN, CLOSE):
            before, rest = rest.split(marker, 1)
            yield Piece(Author.FORMAT, before)
            yield self._token(marker)
        yield Piece(Author.FORMAT, rest)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        in_results = False
        for message in messages:
            if in_results and message.role != "tool":
                yield from self._end()
            if message.role == "tool":
                yield from self._result(message, first=not in_results)
            else:
                yield from self._message(message)
            in_results = message.role == "tool"
        if in_results:
            yield from self._end()

    def _message(self, message: Message) -> Iterator[Piece]:
        if message.role == "system":
            raise EnvError("a system message may only be the first of a prompt")
        yield Piece(Author.CONTROL, _START)
        yield Piece(Author.FORMAT, f"{message.role}\n")
        yield Piece(Author.FOREIGN, message.content)
        yield from self._end()

    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        """One result; neighbours share a user turn."""
        if first:
            yield Piece(Author.CONTROL, _START)
            yield Piece(Author.FORMAT, "user")
        yield Piece(Author.FORMAT, "\n")
        yield self._token(_RESULT)
        yield Piece(Author.FORMAT, "\n")
        yield Piece(Author.FOREIGN, message.content)
        yield Piece(Author.FORMAT, "\n")
        yield self._token(_RESULT_END)
