"""Tools told as declarations of TypeScript, from their JSON schemas.

    // Search the corpus.
    type search = (_: {
    // What to look for.
    query: string,
    k?: number, // default: 3
    }) => any;

These are the words of https://github.com/openai/harmony/blob/main/docs/format.md, but that each
union stands on one line and each line of a description is a comment of its own. A schema may be
anybody's: what it does not say is `any`, and so is what is nested too deeply.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["declaration"]

_STEP = "    "
_MAX_DEPTH = 8


def declaration(function: Mapping[str, Any]) -> str:
    """The declaration of a tool, which is the `function` of OpenAI's schema."""
    parameters = function.get("parameters")
    has_any = isinstance(parameters, Mapping) and parameters.get("properties")
    taken = f"_: {_type(parameters)}" if has_any else ""
    head = "".join(_comments(function.get("description"), ""))
    return f"{head}type {function['name']} = ({taken}) => any;"


def _type(schema: Any, depth: int = 0) -> str:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return "any"
    found = _union(schema, depth) or _plain(schema, schema.get("type"), depth)
    is_null = schema.get("nullable") is True and "null" not in found
    return f"{found} | null" if is_null else found


def _union(schema: Mapping[str, Any], depth: int) -> str:
    """Of several types or values; "" where it is of one type."""
    if values := _several(schema.get("enum")):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    if kinds := _several(schema.get("type")):
        each = [_plain(schema, kind, depth) for kind in kinds]
    else:
        variants = _several(schema.get("oneOf")) or _several(schema.get("anyOf"))
        each = [_type(variant, depth + 1) for variant in variants]
    return " | ".join(dict.fromkeys(each))


def _several(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _plain(schema: Mapping[str, Any], kind: Any, depth: int) -> str:
    if kind == "array":
        inner = _type(schema.get("items"), depth + 1)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        return _object(schema, depth)
    known = {"integer": "number", "number": "number", "string": "string"}
    return known.get(str(kind), str(kind) if kind in ("boolean", "null") else "any")


def _object(schema: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return "object"
    indent, required = _STEP * depth, _several(schema.get("required"))
    head = "".join(_comments(schema.get("description"), indent)) if depth == 0 else ""
    lines = [
        line
        for name, told in properties.items()
        for line in _property(name, told, indent, depth, is_needed=name in required)
    ]
    return f"{head}{{\n{''.join(lines)}{indent}}}"


def _property(name: str, schema: Any, indent: str, depth: int, *, is_needed: bool) -> Iterator[str]:
    told = schema if isinstance(schema, Mapping) else {}
    if title := told.get("title"):
        yield from _comments(title, indent)
        yield f"{indent}//\n"
    yield from _comments(told.get("description"), indent)
    if examples := _several(told.get("examples")):
        yield f"{indent}// Examples:\n"
        for each in examples:
            yield f"{indent}// - {json.dumps(each, ensure_ascii=False)}\n"
    mark = "" if is_needed else "?"
    yield f"{indent}{name}{mark}: {_type(schema, depth + 1)},{_default(told)}\n"


def _default(told: Mapping[str, Any]) -> str:
    if "default" not in told:
        return ""
    value = told["default"]
    is_word = isinstance(value, str) and bool(told.get("enum"))
    return f" // default: {value if is_word else json.dumps(value, ensure_ascii=False)}"


def _comments(text: Any, indent: str) -> Iterator[str]:
    for line in text.splitlines() if isinstance(text, str) else ():
        yield f"{indent}// {line}\n"
