"""`mistral-v3`: turns of Mistral Nemo and Ministral, and their calls, a list of JSON.

    [AVAILABLE_TOOLS][{...}][/AVAILABLE_TOOLS][INST]system NEWLINE NEWLINE content[/INST]
    [TOOL_CALLS][{"name": "search", "arguments": {...}, "id": "000000000"}]</s>
    [TOOL_RESULTS]{"content": "result", "call_id": "000000000"}[/TOOL_RESULTS]
    what it says</s>

`[/INST]` opens a turn, and so does `[/TOOL_RESULTS]`. Tools and system message stand in the last
question of a prompt, as by the template; they stay there when another question comes, for which the
template moves them. A result bears the id that the policy sampled for its call, which is the one
that the result names, otherwise that at its own place; where none was sampled, nine digits of turn
and place. What is JSON in it stays JSON, as it is written.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import OURS, Marked, calls_of, foreign
from agentrl.tokens.spans import Piece

__all__ = ["MistralV3Format"]

BEGIN, END = "<s>", "</s>"
ASKED, ASKED_END = "[INST]", "[/INST]"
TOOLS, TOOLS_END = "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"
CALLS = "[TOOL_CALLS]"
RESULT, RESULT_END = "[TOOL_RESULTS]", "[/TOOL_RESULTS]"
_ENDS = {"user": ASKED_END, "tool": RESULT_END}


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str = ""


_decode = msgspec.json.Decoder(list[_Call]).decode


class MistralV3Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "mistral-v3"
    MARKERS: ClassVar[tuple[str, ...]] = (
        *(BEGIN, END, ASKED, ASKED_END, TOOLS, TOOLS_END),
        *(CALLS, RESULT, RESULT_END),
    )
    #: Whether the system message stands in a user message.
    SYSTEM_IN_QUESTION: ClassVar[bool] = True
    OPENER = ASKED_END
    OTHER_OPENERS = (RESULT_END,)
    RESUMED = (RESULT, ASKED)
    ENDS = (END,)
    FORBIDDEN: ClassVar[tuple[str, ...]] = (
        BEGIN,
        ASKED,
        ASKED_END,
        TOOLS,
        TOOLS_END,
        RESULT,
        RESULT_END,
    )

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        system = system if system is not None else self.default_system or ""
        asked = [at for at, message in enumerate(messages) if message.role == "user"]
        if not asked and (tools or (system and self.SYSTEM_IN_QUESTION)):
            held = "tools and system message" if self.SYSTEM_IN_QUESTION else "tools"
            raise EnvError(f"{self.NAME} has {held} in a user message; let reset return one")
        last = max((at for at in asked if at - 1 not in asked), default=-1)
        yield from self._words(BEGIN)
        yield from self._beginning(system)
        yield from self._dialogue(messages, {last: [*self._told(tools), *self._asked(system)]})

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        yield from self._dialogue(messages, {})

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        yield from self._dialogue(messages, {}, self._sampled_ids(sampled))

    def _dialogue(
        self,
        messages: Sequence[Message],
        begun: Mapping[int, Sequence[Piece]],
        sampled: Sequence[str] = (),
    ) -> Iterator[Piece]:
        """Messages up to the end of the last one, which opens a turn; two questions in a row are
        one. `begun`: what a question begins with; `sampled`: ids of the calls that results answer.
        """
        before = ""
        # A policy may sample an id such as ours, of another call than that which bears it.
        known = {id_: id_ for id_ in sampled if id_ and not OURS.fullmatch(id_)}
        order, number = list(sampled), 0
        for at, message in enumerate(messages):
            if before == message.role == "user":
                yield from self._words("\n\n")
            else:
                yield from self._words(_ENDS.get(before, ""))
                if message.role == "user":
                    yield from begun.get(at) or self._asked("")
            if message.role == "tool":
                yield from self._words(RESULT)
                id_ = message.tool_call_id or ""
                own = known.get(id_) or _result_id(id_, number, order)
                yield from self._result(message, own)
                number += 1
            else:
                yield foreign(message.content)
            if message.role == "assistant":
                if calls := calls_of(message):
                    order, number = [_own_id(call.id, n) for n, call in enumerate(calls)], 0
                    pairs = zip(calls, order, strict=True)
                    known |= {call.id: own for call, own in pairs if call.id}
                yield from self._called(calls)
                yield from self._words(END)
            before = message.role

    def _opened_by(self, role: str) -> str:
        return _ENDS.get(role, ASKED_END)

    def _beginning(self, system: str) -> Iterator[Piece]:
        """What a prompt begins with."""
        del system
        yield from ()

    def _told(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        if tools:
            yield from self._words(TOOLS)
            yield foreign(json.dumps(list(tools), ensure_ascii=False))
            yield from self._words(TOOLS_END)

    def _asked(self, system: str) -> Iterator[Piece]:
        """What a question begins with."""
        yield from self._words(ASKED)
        if system:
            yield foreign(system)
            yield from self._words("\n\n")

    def _result(self, message: Message, call_id: str) -> Iterator[Piece]:
        own = json.dumps(call_id, ensure_ascii=False)
        yield foreign(f'{{"content": {_value(message.content)}, "call_id": {own}}}')

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        if calls:
            yield from self._words(CALLS)
            yield foreign(f"[{', '.join(_json(call, at) for at, call in enumerate(calls))}]")

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        del tools
        text, *rest = self._parts(ids, (CALLS,))
        found = [call for body in rest[1::2] for call in _calls(body)]
        return text, [
            ToolCall(f"{prefix}{at}", call.name, bytes(call.arguments))
            for at, call in enumerate(found)
        ]

    def _sampled_ids(self, sampled: Sequence[int]) -> list[str]:
        """The ids of the calls of a turn, in order; none where they cannot be read."""
        bodies = self._parts(self._said(sampled), (CALLS,))[2::2]
        try:
            return [call.id for body in bodies for call in _calls(body)]
        except MalformedCallError:
            return []


def _calls(body: str) -> list[_Call]:
    try:
        return _decode(body.encode("utf-8", "replace"))
    except RecursionError as error:
        raise MalformedCallError("a tool call is nested too deeply") from error
    # ValueError: a number too long to read; otherwise msgspec's own errors.
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedCallError(
            f"what follows {CALLS} is not a list of calls as JSON ({error}); write "
            '[{"name": "...", "arguments": {...}}]'
        ) from error


def _json(call: ToolCall, at: int) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    id_ = json.dumps(_own_id(call.id, at), ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {call.arguments.decode()}, "id": {id_}}}'


def _own_id(id_: str, at: int) -> str:
    """Nine letters or digits, which is what the model knows ids as."""
    if found := OURS.fullmatch(id_):
        return f"{int(found[1]):06d}{int(found[2]):03d}"
    return id_ if len(id_) == 9 and id_.isalnum() else f"{at:09d}"


def _result_id(id_: str, number: int, order: Sequence[str]) -> str:
    """Of result `number` to calls of ids `order`, if its own id is none of them: that of the call
    at the place that the id tells, otherwise at its own."""
    found = OURS.fullmatch(id_)
    at = int(found[2]) if found else min(number, max(len(order) - 1, 0))
    own = order[at] if at < len(order) else ""
    return own or _own_id(id_, at)


def _value(content: str) -> str:
    """What a result says, as JSON: where it is JSON, as it is written, for what is read and written
    anew may lose keys and digits."""
    try:
        json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(content, ensure_ascii=False)
    return content.strip(" \t\n\r")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
