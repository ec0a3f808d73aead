"""`harmony`: turns of gpt-oss, each of one or more messages in channels.

    <|start|>user<|message|>content<|end|>
    <|start|>assistant <|channel|>analysis<|message|>why<|end|>
    <|start|>assistant <|channel|>commentary to=functions.search <|constrain|>json
        <|message|>{"query": "words"}<|call|>
    <|start|>functions.search to=assistant<|channel|>commentary<|message|>result<|end|>
    <|start|>assistant <|channel|>final<|message|>what it says<|return|>

Reasoning is what stands in `analysis`, and is kept; text is what stands in `final`, and in
`commentary` without a recipient. A call may stand in any channel, and name its tool before the
channel or after it. Of several calls in a demonstrated turn each but the last ends with `<|end|>`.

A system message is what this model calls a developer's; a first line `Reasoning: low`, `medium` or
`high` in it is the model's own effort, otherwise medium. There is no date, so that a prompt is the
same tomorrow. The format is https://github.com/openai/harmony/blob/main/docs/format.md.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import OURS, Marked, calls_of, foreign
from agentrl.tokens.formats.thoughts import written_thought
from agentrl.tokens.formats.typescript import declaration
from agentrl.tokens.formats.values import json_arguments
from agentrl.tokens.spans import Author, Piece

__all__ = ["HarmonyFormat"]

_START, _END, _MESSAGE, _CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
_TYPE, _RETURN, _CALL = "<|constrain|>", "<|return|>", "<|call|>"
_CHANNELS = ("analysis", "commentary", "final")
_ASSISTANT = f"{_START}assistant"
_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
_EFFORT = re.compile(r"Reasoning: (low|medium|high)(?:\n+|$)")
_HEADER = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
_CALLING = "\nCalls to these tools must go to the commentary channel: 'functions'."
_TOOLS_HEAD = "# Tools\n\n## functions\n\nnamespace functions {\n\n"
_TOOLS_TAIL = "} // namespace functions"
_MARKS = (_START, _CHANNEL, _TYPE, _MESSAGE, _RETURN, _CALL)
#: What marks messages within a turn.
_INSIDE = (_START, _END, _MESSAGE, _CHANNEL, _TYPE)
#: Of the marks of a message of a turn, one letter each, those that it has.
_SHAPE = re.compile("ck?m")
_TO = re.compile(r"(?:^|\s)to=(\S+)")


class _Said(NamedTuple):
    """A message of a turn; `to` is empty where it is for whoever reads the turn."""

    channel: str
    to: str
    words: str


class HarmonyFormat(Marked):
    """A `ChatFormat`; see `Marked` for its arguments. `default_system`: who the model is told that
    it is."""

    NAME = "harmony"
    MARKERS = (_START, _END, _MESSAGE, _CHANNEL, _TYPE, _RETURN, _CALL)
    OPENER = _ASSISTANT
    ENDS = (_RETURN, _CALL, "<|endoftext|>")
    FORBIDDEN = ("<|startoftext|>",)

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        asked = _EFFORT.match(system or "")
        told = (system or "")[asked.end() if asked else 0 :]
        yield from self._words(
            f"{_START}system{_MESSAGE}{self.default_system or _IDENTITY}\n"
            f"Knowledge cutoff: 2024-06\n\nReasoning: {asked[1] if asked else 'medium'}\n\n"
            f"{_HEADER}{_CALLING if tools else ''}{_END}"
        )
        if told or tools:
            yield from self._words(f"{_START}developer{_MESSAGE}")
            if told:
                yield from self._words("# Instructions\n\n")
                yield foreign(told)
            if tools:
                yield from self._words(f"\n\n{_TOOLS_HEAD}" if told else _TOOLS_HEAD)
                for schema in tools:
                    yield foreign(declaration(schema["function"]))
                    yield from self._words("\n\n")
                yield from self._words(_TOOLS_TAIL)
            yield from self._words(_END)
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        names: Mapping[str | None, str] = {}
        for message in messages:
            if calls := calls_of(message):
                names = {call.id: f"functions.{call.name}" for call in calls}
            yield from self._shown(message, names)

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        """A result is of the tool that was called: by the place that its id has from `parse`,
        otherwise by its own place among the results. One that answers no call, such as an error,
        is of the last tool that was addressed."""
        addressed = self._addressed(sampled)
        last = len(addressed) - 1
        results = [message for message in messages if message.role == "tool"]
        alone = len(results) == 1 and results[0].tool_call_id is None
        number = 0
        for message in messages:
            found = OURS.fullmatch(message.tool_call_id or "")
            at = int(found[2]) if found else last if alone else number
            name = addressed[min(at, last)] if addressed else "functions"
            yield from self._shown(message, {message.tool_call_id: name})
            number += message.role == "tool"

    def _shown(self, message: Message, names: Mapping[str | None, str]) -> Iterator[Piece]:
        calls = calls_of(message)
        if message.role == "tool":
            yield from self._words(_START)
            yield foreign(names.get(message.tool_call_id, "functions"))
            yield from self._words(f" to=assistant{_CHANNEL}commentary{_MESSAGE}")
        elif message.role == "user":
            yield from self._words(f"{_START}user{_MESSAGE}")
        elif message.content or not calls:
            channel = "commentary" if calls else "final"
            yield from self._words(f"{_ASSISTANT}{_CHANNEL}{channel}{_MESSAGE}")
        if message.content or not calls:
            yield foreign(message.content)
            yield from self._words(_END)
        for call in calls:
            yield from self._words(_ASSISTANT)
            yield from self._called([call])
            yield from self._words(_CALL)

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        for number, call in enumerate(calls):
            begin = f"{_END}{_ASSISTANT}" if number else ""
            yield from self._words(f"{begin}{_CHANNEL}commentary to=functions.")
            yield foreign(call.name)
            yield from self._words(f" {_TYPE}json{_MESSAGE}")
            yield foreign(call.arguments.decode())

    def _ended(self, sampled: Sequence[int]) -> Iterator[Piece]:
        if not sampled or sampled[-1] not in (*self._ends, self.vocab.control[_END]):
            yield Piece(Author.CONTROL, _END)

    def _end(self, calls: Sequence[ToolCall]) -> str:
        return _CALL if calls else _RETURN

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        """What stands before `</think>` is a thought, and its own words are no markers here. Words
        that spell a marker would be further messages, and are refused."""
        held = [text, *(part for call in calls for part in (call.name, call.arguments.decode()))]
        if found := [mark for mark in _INSIDE if any(mark in part for part in held)]:
            raise EnvError(
                f"a demonstrated turn holds {' '.join(found)}, which {self.NAME} has between "
                "messages; take it out of its text, names and arguments"
            )
        thought, said = written_thought(text)
        messages = [f"{_CHANNEL}analysis{_MESSAGE}{thought}"] if thought else []
        if said or not calls:
            messages.append(f"{_CHANNEL}{'commentary' if calls else 'final'}{_MESSAGE}{said}")
        messages += [self._text_of(calls)] if calls else []
        return f"{_END}{_ASSISTANT}".join(messages)

    def _thought(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """What stands in `analysis` and calls no tool; the other messages keep their marks."""
        thought, said = list[int](), list[int]()
        for part in self._split(ids):
            if (message := self._try(part)) and message.channel == "analysis" and not message.to:
                thought += part[part.index(self.vocab.control[_MESSAGE]) + 1 :]
            else:
                said += part
        end = self.vocab.control[_END]
        return [id_ for id_ in thought if id_ != end], said

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        del tools
        text, calls = list[str](), list[ToolCall]()
        for message in map(self._message, self._split(ids)):
            if message.to:
                calls.append(_call(f"{prefix}{len(calls)}", message))
            else:
                text.append(message.words)
        return "\n".join(text), calls

    def _split(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """The messages of a turn, each with its `<|end|>`, if it has one."""
        start = 0
        for at, id_ in enumerate(ids, start=1):
            if id_ == self.vocab.control[_END] or at == len(ids):
                yield list(ids[start:at])
                start = at

    def _message(self, ids: Sequence[int]) -> _Said:
        """A message of a turn. The first stands after the opener, any other has one of its own."""
        end, opener = self.vocab.control[_END], self.assistant_opener
        begin = len(opener) if tuple(ids[: len(opener)]) == opener else 0
        before, *rest = self._parts([id_ for id_ in ids[begin:] if id_ != end], _MARKS)
        shape = "".join("sckmrt"[_MARKS.index(mark)] for mark in rest[::2])
        if _SHAPE.fullmatch(shape) is None or not _may_precede(before):
            raise MalformedCallError(
                f"a message of a turn is {_CHANNEL}, its channel, {_MESSAGE} and its words, and "
                f"after {_END} follows {_ASSISTANT}"
            )
        channel, *kind = rest[1].split() or [""]
        if channel not in _CHANNELS:
            raise MalformedCallError(f"{channel!r:.100} is no channel; use {', '.join(_CHANNELS)}")
        to = _TO.search(" ".join([before, *kind]))
        return _Said(channel, to[1] if to else "", rest[-1])

    def _try(self, ids: Sequence[int]) -> _Said | None:
        try:
            return self._message(ids)
        except MalformedCallError:
            return None

    def _addressed(self, sampled: Sequence[int]) -> list[str]:
        """Which tools a turn calls, in order, as far as it can be read. The name heads a message
        that the policy does not write: it may choose a tool's, and no other role."""
        found = map(self._try, self._split(self._said(sampled)))
        to = [message.to for message in found if message and message.to]
        return [name if name.startswith("functions.") else "functions" for name in to]


def _may_precede(words: str) -> bool:
    """Whether it may stand before the channel of a message: blanks, and for whom the message is."""
    each = words.split()
    return not each or (len(each) == 1 and each[0].startswith("to=") and each[0] != "to=")


def _call(id_: str, message: _Said) -> ToolCall:
    place, _, name = message.to.partition(".")
    if place != "functions" or not name:
        raise MalformedCallError(f"a call is to=functions.NAME, not to={message.to[:100]}")
    return ToolCall(id_, name, json_arguments(message.words, name))
