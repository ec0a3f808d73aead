"""`llama3`: turns of Llama 3.1 and later, and their calls as JSON.

    <|start_header_id|>user<|end_header_id|> NEWLINE NEWLINE content <|eot_id|>
    {"name": "search", "parameters": {...}} <|eot_id|>                          a turn that calls
    Let me see. <|python_tag|> {"name": ...};{"name": ...} <|eot_id|>           with words, and two

The ids equal those of the rendered chat template, for any content without control text. Four
things differ by intent: the text of a control token stays text; what was sampled is never trimmed;
the words of a prompt's turn that calls are kept; and the date is the one that the template has
where it knows no clock, so that a prompt is the same tomorrow.
"""

import json
from collections.abc import Collection, Iterator, Sequence

import msgspec

from agentrl.errors import EnvError
from agentrl.tokens.chat import Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.hermes import MalformedCallError
from agentrl.tokens.formats.marked import Marked, calls_of, foreign
from agentrl.tokens.formats.values import after_blanks
from agentrl.tokens.spans import Piece

__all__ = ["Llama3Format"]

_BEGIN, _START, _STOP = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"
_END, _CALLS = "<|eot_id|>", "<|python_tag|>"
_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and '
    "its value}.Do not use variables.\n\n"
)
#: What stands between two calls of a turn.
_NEXT = ";"
_decoder = json.JSONDecoder()


class _Call(msgspec.Struct, frozen=True):
    name: str
    parameters: msgspec.Raw = msgspec.Raw()
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Llama3Format(Marked):
    """A `ChatFormat`; see `Marked` for its arguments."""

    NAME = "llama3"
    MARKERS = (_BEGIN, _START, _STOP, _END, _CALLS)
    OPENER = f"{_START}assistant{_STOP}\n\n"
    ENDS = (_END, "<|eom_id|>")
    FORBIDDEN = (_START, _STOP, _BEGIN, "<|end_of_text|>")

    def _prompt(
        self, system: str | None, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Iterator[Piece]:
        environment = "Environment: ipython\n" if tools else ""
        yield from self._words(f"{_BEGIN}{_START}system{_STOP}\n\n{environment}{_DATES}")
        yield foreign((system or self.default_system or "").strip())
        yield from self._words(_END)
        if tools:
            if not messages or messages[0].role != "user":
                raise EnvError(
                    "llama3 describes tools in the first user message; let reset return one first"
                )
            yield from self._words(f"{_START}user{_STOP}\n\n{_TOOLS}")
            for schema in tools:
                yield foreign(json.dumps(schema, ensure_ascii=False, indent=4))
                yield from self._words("\n\n")
            yield foreign(messages[0].content.strip())
            yield from self._words(_END)
            messages = messages[1:]
        yield from self._messages(messages)

    def _messages(self, messages: Sequence[Message]) -> Iterator[Piece]:
        for message in messages:
            role = "ipython" if message.role == "tool" else message.role
            yield from self._words(f"{_START}{role}{_STOP}\n\n")
            if message.role == "tool":
                yield foreign(json.dumps(message.content, ensure_ascii=False))
            else:
                yield foreign(message.content.strip())
            if calls := calls_of(message):
                if message.content.strip():
                    yield from self._words(_CALLS)
                yield from self._called(calls)
            yield from self._words(_END)

    def _called(self, calls: Sequence[ToolCall]) -> Iterator[Piece]:
        for number, call in enumerate(calls):
            name = json.dumps(call.name, ensure_ascii=False)
            begin = _NEXT if number else ""
            yield foreign(f'{begin}{{"name": {name}, "parameters": {call.arguments.decode()}}}')

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        return (f"{text}{_CALLS}" if text and calls else text) + self._text_of(calls)

    def _read(
        self, ids: Sequence[int], prefix: str, tools: Collection[str]
    ) -> tuple[str, list[ToolCall]]:
        """A turn that begins with `{"name"` makes calls, and so does one that has the marker."""
        del tools
        text, *marked = self._parts(ids, (_CALLS,))
        if marked:
            return text, _calls("".join(marked[1::2]), prefix)
        is_call = "".join(text.split()).startswith('{"name":')
        return ("", _calls(text, prefix)) if is_call else (text, [])


def _calls(body: str, prefix: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    body = body.strip()
    at = 0
    while at < len(body):
        try:
            _, end = _decoder.raw_decode(body, at)
            call = msgspec.json.decode(body[at:end].encode("utf-8", "replace"), type=_Call)
        except RecursionError as error:
            raise MalformedCallError("a tool call is nested too deeply") from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise MalformedCallError(
                f'a tool call is not valid JSON ({error}); write {{"name": "...", "parameters": '
                "{...}}"
            ) from error
        raw = bytes(call.parameters) or bytes(call.arguments)
        calls.append(ToolCall(f"{prefix}{len(calls)}", call.name, raw))
        at = after_blanks(body, end)
        if body.startswith(_NEXT, at):
            at = after_blanks(body, at + len(_NEXT))
    if not calls:
        raise MalformedCallError(f"no call follows {_CALLS}")
    return calls
