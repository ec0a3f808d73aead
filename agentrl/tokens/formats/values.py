"""Arguments of calls: as one JSON object, or as plain text, each for itself.

    {"city": "Rome"}            <arg_value>Rome</arg_value>

Whether a plain `5` is a number or a text, the schema of the tool says. Where that is unknown, or a
union, the text is a JSON value of a type that it allows, and otherwise a string.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agentrl.tokens.chat import ToolCall
from agentrl.tokens.formats.hermes import MalformedCallError

__all__ = [
    "after_blanks",
    "arguments_of",
    "as_text",
    "element_name",
    "json_arguments",
    "named_elements",
    "read_arguments",
]

_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    type(None): frozenset({"null"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}
_SOLID = re.compile(r"\S")
_LITERALS = {"True": "true", "False": "false", "None": "null"}


def arguments_of(call: ToolCall) -> Iterator[tuple[str, Any]]:
    """Name and value of each argument of a call whose arguments are a JSON object."""
    found = json.loads(call.arguments)
    yield from found.items() if isinstance(found, dict) else ()


def as_text(value: Any) -> str:
    """A value as plain text: a string is itself, anything else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_arguments(raw: str, tool: str) -> bytes:
    """The arguments that a call of `tool` wrote as JSON. Raises `MalformedCallError`."""
    found = raw.strip().encode("utf-8", "replace")
    try:
        msgspec.json.decode(found)
    except RecursionError as error:
        raise MalformedCallError("a tool call is nested too deeply") from error
    # ValueError: a number too long to read; otherwise msgspec's own errors.
    except (msgspec.MsgspecError, ValueError) as error:
        what = f"the arguments of {tool[:100]}"
        raise MalformedCallError(f"{what} are not valid JSON ({error}); write an object") from error
    return found


def read_arguments(
    tool: str, pairs: Iterable[tuple[str, str]], tools: Collection[str], *, python: bool = False
) -> bytes:
    """A JSON object of the arguments that a call of `tool` wrote. `tools`: as of `parse`. `python`:
    a value may be one of Python's `True`, `False` and `None`."""
    properties = _properties(tools[tool]) if isinstance(tools, Mapping) and tool in tools else {}
    items = [
        msgspec.json.encode(name) + b":" + _value(text, _allowed(properties.get(name)), python)
        for name, text in pairs
    ]
    return b"{" + b",".join(items) + b"}"


def after_blanks(text: str, at: int = 0) -> int:
    """Where the first character at or behind `at` stands that is no blank, or the end."""
    found = _SOLID.search(text, at)
    return len(text) if found is None else found.start()


def element_name(text: str, at: int, begin: str, middle: str) -> tuple[str, int] | None:
    """The name between `begin`, which is to stand at `at`, and `middle`, such as those of
    `<parameter=NAME>`, and where that ends. None where there is none: a name is on one line, and
    holds nothing that `middle` begins with."""
    start = at + len(begin)
    stop = text.find(middle, start)
    name = text[start:stop]
    if not text.startswith(begin, at) or stop < 0 or not name:
        return None
    if "\n" in name or middle[0] in name:
        return None
    return name, stop + len(middle)


def named_elements(text: str, marks: tuple[str, str, str]) -> list[tuple[str, str]] | None:
    """Name and content of each element, such as `<parameter=NAME>CONTENT</parameter>`. `marks`
    stand before a name, behind it, and behind the content, which ends with the first of them. None
    where anything but blanks stands beside the elements. Takes time in proportion to the text."""
    begin, middle, end = marks
    found = []
    at = after_blanks(text)
    while at < len(text):
        named = element_name(text, at, begin, middle)
        stop = text.find(end, named[1]) if named is not None else -1
        if named is None or stop < 0:
            return None
        found.append((named[0], text[named[1] : stop]))
        at = after_blanks(text, stop + len(end))
    return found


def _properties(schema: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema["function"].get("parameters", {}).get("properties", {})
    return found


def _allowed(schema: Any) -> frozenset[str] | None:
    """JSON types of a property; None: any."""
    if not isinstance(schema, Mapping):
        return None
    if "type" in schema:
        kinds = schema["type"]
        return frozenset([kinds] if isinstance(kinds, str) else kinds)
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return frozenset().union(*(_TYPES.get(type(value), {"string"}) for value in values))
    branches = [_allowed(branch) for branch in schema.get("anyOf", schema.get("oneOf", ()))]
    known = [branch for branch in branches if branch is not None]
    return frozenset().union(*known) if known and len(known) == len(branches) else None


def _value(text: str, allowed: frozenset[str] | None, python: bool) -> bytes:
    raw = _LITERALS.get(text.strip(), text) if python else text
    try:
        found = msgspec.json.decode(raw.encode("utf-8", "replace"))
    # A number too long, text nested too deeply: it is text, and its tool says what is wrong.
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = text
    kinds = _TYPES.get(type(found))
    if kinds is None or (allowed is not None and "string" in allowed and not kinds & allowed):
        return msgspec.json.encode(text.encode("utf-8", "replace").decode())
    return raw.strip().encode()
