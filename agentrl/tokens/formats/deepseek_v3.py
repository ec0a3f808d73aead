"""`deepseek-v3`: turns of DeepSeek-V3, and its calls: a name, and below it JSON in a fence.

    <｜User｜>content<｜Assistant｜>what it says <｜tool▁calls▁begin｜>
        <｜tool▁call▁begin｜>function<｜tool▁sep｜>search NEWLINE
        ```json NEWLINE {"query": "words"} NEWLINE ```<｜tool▁call▁end｜>
        <｜tool▁calls▁end｜><｜end▁of▁sentence｜>
    <｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>result<｜tool▁output▁end｜><｜tool▁outputs▁end｜>

A turn that follows results follows them at once: `<｜tool▁outputs▁end｜>` opens it. A question that
follows them leaves the results open, as the template does. The template says nothing of tools;
where a directory has one that does, the words are those of SGLang's template for this model.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import Marked, calls_of, foreign
from agentrl.tokens.formats.values import json_arguments
from agentrl.tokens.spans import Piece

__all__ = ["OF_TOOLS", "DeepSeekV3Format"]

_BEGIN, _END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _NAME, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_RESULTS, _RESULTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_RESULT, _RESULT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_MARKS = (_CALLS, _CALL, _NAME, _CALL_END, _CALLS_END)
#: The markers of calls and results.
OF_TOOLS = (*_MARKS, _RESULTS, _RESULT, _RESULT_END, _RESULTS_END)
_TOOLS = (
    "You are a helpful assistant with tool calling capabilities. When a tool call is needed, you "
    f"MUST use the following format to issue the call:\n{_CALLS}{_CALL}function{_NAME}FUNCTION_NAME"
    f'\n```json\n{{"param1": "value1", "param2": "value2"}}\n```{_CALL_END}{_CALLS_END}\n\n'
    "Make sure the JSON is valid.## Tools\n\n### Function\n\n"
    "You have the following functions available:\n\n"
)
#: The marks of a turn's blocks of calls, one letter each.
_BLOCKS = re.compile("(?:b(?:cne)+f)*")
_FENCE, _LAST_FENCE = "```", "\n```"


class DeepSeekV3Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "deepseek-v3"
    MARKERS: ClassVar[tuple[str, ...]] = (_BEGIN, _END, _USER, _ASSISTANT, *OF_TOOLS)
    OPENER = _ASSISTANT
    OTHER_OPENERS: ClassVar[tuple[str, ...]] = (_RESULTS_END,)
    ENDS = (_END,)
    FORBIDDEN = (_USER, _ASSISTANT, _BEGIN, _RESULTS, _RESULT, _RESULT_END, _RESULTS_END)

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        yield from self._words(_BEGIN)
        yield foreign(system if system is not None else self.default_system or "")
        if tools:
            yield from self._words(f"\n\n{_TOOLS}")
            for schema in tools:
                yield from self._words("\n```json\n")
                yield foreign(json.dumps(schema, ensure_ascii=False))
                yield from self._words("\n```\n")
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        before = ""
        for message in messages:
            if message.role == "tool":
                yield from self._words("\n" if before == "tool" else _RESULTS)
                yield from self._words(_RESULT)
                yield foreign(message.content)
                yield from self._words(_RESULT_END)
            elif message.role == "user":
                yield from self._words(_USER)
                yield foreign(message.content)
            else:
                yield from self._words(_before(before) if before else "")
                yield foreign(message.content)
                yield from self._called(calls_of(message))
                yield from self._words(_END)
            before = "" if message.role == "assistant" else message.role

    def _opened_by(self, role: str) -> str:
        return self.OTHER_OPENERS[0] if role == "tool" else self.OPENER

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        for number, call in enumerate(calls):
            yield from self._words(f"{chr(10) if number else _CALLS}{_CALL}function{_NAME}")
            yield foreign(call.name)
            yield from self._words("\n```json\n")
            yield foreign(call.arguments.decode())
            yield from self._words(f"\n```{_CALL_END}")
        if calls:
            yield from self._words(_CALLS_END)

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        """A turn may have several blocks of calls, and a block several calls."""
        del tools
        text, *rest = self._parts(ids, _MARKS)
        marks, words = rest[::2], rest[1::2]
        if _BLOCKS.fullmatch("".join("bcnef"[_MARKS.index(mark)] for mark in marks)) is None:
            raise MalformedCallError(
                f"calls stand between {_CALLS} and {_CALLS_END}, each as {_CALL}function{_NAME}, "
                f"its name, its arguments and {_CALL_END}"
            )
        bodies = [word for mark, word in zip(marks, words, strict=True) if mark == _NAME]
        text += "".join(word for mark, word in zip(marks, words, strict=True) if mark == _CALLS_END)
        return text, [_call(f"{prefix}{at}", body) for at, body in enumerate(bodies)]


def _before(role: str) -> str:
    """What stands before a turn of the prompt after a message of `role`."""
    return _RESULTS_END if role == "tool" else _ASSISTANT


def _call(id_: str, body: str) -> ToolCall:
    name, _, fenced = body.partition(_FENCE)
    name = name.strip()
    fenced = fenced.removeprefix("json").rstrip()
    arguments = fenced.removeprefix("\n").removesuffix(_LAST_FENCE)
    is_fenced = len(fenced) - len(arguments) == len("\n" + _LAST_FENCE)
    if not name or "\n" in name or "`" in name or not is_fenced:
        raise MalformedCallError(
            "a tool call is the name of the tool, and below it ```json, the arguments as an object "
            "and ``` on lines of their own"
        )
    return ToolCall(id_, name, json_arguments(arguments, name))
