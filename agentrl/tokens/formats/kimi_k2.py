"""`kimi-k2`: turns of Kimi K2 Instruct, and its calls, each under a name that the model gives it.

    <|im_user|> user <|im_middle|> content <|im_end|>
    <|im_assistant|> assistant <|im_middle|> what it says <|tool_calls_section_begin|>
        <|tool_call_begin|> functions.search:0 <|tool_call_argument_begin|> {...} <|tool_call_end|>
        <|tool_calls_section_end|> <|im_end|>
    <|im_system|> tool <|im_middle|> ## Return of functions.search:0 NEWLINE result <|im_end|>

A result bears the name that the policy sampled for its call. A call in a prompt is named by its
place among the calls of its turn, and a result that answers no call of the last turn by its id.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import Marked, calls_of, foreign
from agentrl.tokens.formats.values import json_arguments
from agentrl.tokens.spans import Piece

__all__ = ["KimiK2Format"]

_SYSTEM, _USER, _ASSISTANT = "<|im_system|>", "<|im_user|>", "<|im_assistant|>"
_MIDDLE, _END = "<|im_middle|>", "<|im_end|>"
_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_MARKS = (_CALLS, _CALL, _ARGUMENTS, _CALL_END, _CALLS_END)
_NAMED = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)
_DEFAULT = "You are Kimi, an AI assistant created by Moonshot AI."


class KimiK2Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "kimi-k2"
    MARKERS = (_SYSTEM, _USER, _ASSISTANT, _MIDDLE, _END, *_MARKS)
    OPENER = f"{_ASSISTANT}assistant{_MIDDLE}"
    ENDS = (_END,)
    FORBIDDEN = (_SYSTEM, _USER, _ASSISTANT, _MIDDLE)

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        if tools:
            yield from self._words(f"{_SYSTEM}tool_declare{_MIDDLE}")
            yield foreign(json.dumps(list(tools), ensure_ascii=False))
            yield from self._words(_END)
        yield from self._words(f"{_SYSTEM}system{_MIDDLE}")
        if system is not None:
            yield foreign(system)
        else:
            yield from self._words(self.default_system or _DEFAULT)
        yield from self._words(_END)
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        names: Mapping[str, str] = {}
        for message in messages:
            if calls := calls_of(message):
                names = {call.id: _named(call, at) for at, call in enumerate(calls)}
            yield from self._shown(message, names)

    def _answer(self, messages: Sequence[Message], sampled: Sequence[int]) -> Iterator[Piece]:
        parts = self._parts(sampled, _MARKS)
        begun = [at for at, part in enumerate(parts) if part == _CALL]
        names = {str(number): parts[at + 1].strip() for number, at in enumerate(begun)}
        for message in messages:
            place = (message.tool_call_id or "").rpartition("_")[2]
            known = {message.tool_call_id or "": names[place]} if place in names else {}
            yield from self._shown(message, known)

    def _shown(self, message: Message, names: Mapping[str, str]) -> Iterator[Piece]:
        role = {"user": _USER, "assistant": _ASSISTANT}.get(message.role, _SYSTEM)
        yield from self._words(f"{role}{message.role}{_MIDDLE}")
        if message.role == "tool":
            called = message.tool_call_id or ""
            yield from self._words("## Return of ")
            yield foreign(names.get(called, called))
            yield from self._words("\n")
        yield foreign(message.content)
        if calls := calls_of(message):
            yield from self._called(calls)
        yield from self._words(_END)

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        yield from self._words(_CALLS)
        for at, call in enumerate(calls):
            yield from self._words(_CALL)
            yield foreign(_named(call, at))
            yield from self._words(_ARGUMENTS)
            yield foreign(call.arguments.decode())
            yield from self._words(_CALL_END)
        yield from self._words(_CALLS_END)

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        del tools
        text, *rest = self._parts(ids, _MARKS)
        if not rest:
            return text, []
        marks, words = rest[::2], rest[1::2]
        num = (len(marks) - 2) // 3
        if num < 1 or marks != [_CALLS, *[_CALL, _ARGUMENTS, _CALL_END] * num, _CALLS_END]:
            raise MalformedCallError(
                f"calls stand between {_CALLS} and {_CALLS_END}, each as {_CALL} name {_ARGUMENTS} "
                f"arguments {_CALL_END}"
            )
        named = zip(words[1::3], words[2::3], strict=False)
        return text + words[-1], [
            _call(f"{prefix}{number}", name, raw) for number, (name, raw) in enumerate(named)
        ]


def _named(call: ToolCall, at: int) -> str:
    return f"functions.{call.name}:{at}"


def _call(id_: str, named: str, raw: str) -> ToolCall:
    found = _NAMED.fullmatch(named.strip())
    if found is None:
        raise MalformedCallError(
            f"a tool call is named functions.NAME:0, not {named.strip()!r:.100}"
        )
    return ToolCall(id_, found[1], json_arguments(raw, found[1]))
