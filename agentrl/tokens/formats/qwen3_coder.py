"""`qwen3-coder`: ChatML turns, and calls that write each argument for itself, as Qwen3-Coder does.

    <tool_call> NEWLINE <function=search> NEWLINE
    <parameter=query> NEWLINE words NEWLINE </parameter> NEWLINE
    </function> NEWLINE </tool_call>

The ids equal those of the rendered chat template, for any content without control text. What
differs is as in `qwen`. The tags inside a call are plain words, so a value cannot hold
`</parameter>`: a demonstration that would write one is refused.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.errors import EnvError
from agentrl.tokens.chat import CallMessage, Message, ToolCall
from agentrl.tokens.formats.base import ToolSchema
from agentrl.tokens.formats.chatml import START
from agentrl.tokens.formats.hermes import CLOSE, OPEN, MalformedCallError
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.tokens.formats.values import arguments_of, element_name, named_elements, read_arguments
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.vocab import Vocab

__all__ = ["Qwen3CoderFormat"]

_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
    f"suffix:\n\n{OPEN}\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    f"that can span\nmultiple lines\n</parameter>\n</function>\n{CLOSE}\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block "
    f"must be nested within {OPEN}{CLOSE} XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the "
    "function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>"
)
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER = ("<parameter=", ">", "</parameter>")


class Qwen3CoderFormat(QwenFormat):
    """A `ChatFormat`; see `ChatML` for its arguments."""

    def __init__(
        self,
        vocab: Vocab,
        *,
        name: str = "qwen3-coder",
        tools_in_prompt: bool = True,
        default_system: str | None = None,
    ) -> None:
        super().__init__(
            vocab, name=name, tools_in_prompt=tools_in_prompt, default_system=default_system
        )

    def _system(self, content: str | None, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        """Where there are tools and no system message, the template has words of its own."""
        if content is None and self.default_system is None and tools:
            yield Piece(Author.CONTROL, START)
            yield Piece(Author.FORMAT, f"system\n{_SYSTEM}\n\n")
            yield from self._tools(tools)
            yield from self._end()
        else:
            yield from super()._system(content, tools)

    def _tools(self, tools: Sequence[ToolSchema]) -> Iterator[Piece]:
        yield Piece(Author.FORMAT, _TOOLS_HEAD)
        for schema in tools:
            yield Piece(Author.FORMAT, "\n")
            yield Piece(Author.FOREIGN, self._told(schema))
        yield from self._marked(_TOOLS_TAIL)

    def _told(self, schema: ToolSchema) -> str:
        """What a prompt says of one tool."""
        return _shown(schema["function"])

    def _result(self, message: Message, *, first: bool) -> Iterator[Piece]:
        newline_first = [*super()._result(message, first=first)]
        yield from newline_first if first else newline_first[1:]
        yield Piece(Author.FORMAT, "\n")

    def _message(self, message: Message) -> Iterator[Piece]:
        """A blank line sets calls apart from what is said before them."""
        if isinstance(message, CallMessage) and message.calls:
            said = message.content.strip()
            message = msgspec.structs.replace(message, content=f"{said}\n" if said else "")
        yield from super()._message(message)

    def _written(self, text: str, calls: Sequence[ToolCall]) -> str:
        return super()._written(f"{text}\n" if text and calls else text, calls)

    def _body(self, call: ToolCall) -> str:
        pairs = [(name, _value(value)) for name, value in arguments_of(call)]
        if held := [name for name, text in pairs if "</parameter>" in text]:
            raise EnvError(f"the argument {held[0]} of {call.name} holds </parameter>, its own end")
        values = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in pairs)
        return f"\n<function={call.name}>\n{values}</function>\n"

    def _read(self, body: str, *, tools: Collection[str]) -> tuple[str, bytes]:
        body = body.strip()
        named = element_name(body, 0, _FUNCTION, ">")
        inner = body[named[1] :] if named is not None else ""
        pairs = named_elements(inner.removesuffix(_FUNCTION_END), _PARAMETER)
        if named is None or not inner.endswith(_FUNCTION_END) or pairs is None:
            raise MalformedCallError(
                "a tool call is <function=name>, for each argument <parameter=name>, its value and "
                "</parameter> on lines of their own, and </function>"
            )
        values = [(name, text.removeprefix("\n").removesuffix("\n")) for name, text in pairs]
        return named[0], read_arguments(named[0], values, tools, python=True)


def _value(value: Any) -> str:
    """Lists and objects are JSON; of the rest the template writes what Python does."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _shown(function: ToolSchema) -> str:
    """A tool as tags."""
    lines = ["<function>", f"<name>{function['name']}</name>"]
    if "description" in function:
        lines.append(f"<description>{function['description'].strip()}</description>")
    lines.append("<parameters>")
    parameters = function.get("parameters", {})
    for name, told in parameters.get("properties", {}).items():
        lines += ["<parameter>", f"<name>{name}</name>"]
        if "type" in told:
            lines.append(f"<type>{told['type']}</type>")
        if "description" in told:
            lines.append(f"<description>{told['description'].strip()}</description>")
        lines += [*_others(told, ("name", "type", "description")), "</parameter>"]
    lines += [*_others(parameters, ("type", "properties")), "</parameters>"]
    lines += [*_others(function, ("type", "name", "description", "parameters")), "</function>"]
    return "\n".join(lines)


def _others(told: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    for key in [key for key in told if key not in known]:
        yield f"<{key}>{_value(told[key])}</{key}>"
