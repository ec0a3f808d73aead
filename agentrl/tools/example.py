"""Arguments that fit a tool's JSON schema: what `agentrl env check` calls tools with.

    usual   every property, with small values of its type
    least   only what is required, as empty and as small as may be
    odd     as the usual, each free text one that spells markers

What a schema itself offers goes first: `const`, `enum`, `examples`. A text that has to match a
pattern cannot be made up: say an example of it, as in
`Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$", examples=["ABC"])]`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentrl.tools.tool import Tool, ToolError

__all__ = ["arguments_for", "made_up"]

Schema = Mapping[str, Any]

#: A text of each format that msgspec and JSON schema have a word for.
_FORMATS = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "time": "03:04:05Z",
    "duration": "P1D",
    "uuid": "12345678-1234-5678-1234-567812345678",
    "decimal": "1",
    "uri": "http://127.0.0.1:1/",
    "email": "someone@example.org",
}
#: Depth from which everything is as small as may be: definitions may stand in one another.
_DEEP = 6
_MAX_DEPTH = 24
_MAX_ITEMS = 64


def arguments_for(tool: Tool[Any], odd: str) -> Iterator[bytes]:
    """JSON of calls that `tool` takes, no two alike; nothing where none could be made up.

    `odd` is the free text of the odd ones.
    """
    for raw in dict.fromkeys(made_up(tool.spec.parameters, odd)):
        try:
            tool.decode(raw)
        except ToolError:
            continue
        yield raw


def made_up(schema: Schema, odd: str) -> list[bytes]:
    """JSON of the usual, the least and the odd, whether or not they fit."""
    kinds = (_Usual(schema, "1"), _Least(schema, ""), _Odd(schema, odd))
    return [msgspec.json.encode(kind.value(schema, 0)) for kind in kinds]


class _Usual:
    """Values of a schema whose free texts are `text`."""

    is_least = False
    is_odd = False

    def __init__(self, root: Schema, text: str) -> None:
        self._root = root
        self._text = text

    def value(self, schema: object, depth: int) -> Any:
        """A value that fits `schema`, as far as one can tell."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        if "$ref" in schema:
            return self.value(self._named(str(schema["$ref"])), depth + 1)
        if "const" in schema:
            return schema["const"]
        for key in ("enum", "examples"):
            if schema.get(key) and not (self.is_odd and key == "examples" and _is_free(schema)):
                return schema[key][0]
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.value(self._one_of(schema[key], depth), depth + 1)
        return self._typed(schema, depth)

    def _named(self, reference: str) -> object:
        found: Any = self._root
        for key in reference.removeprefix("#/").split("/"):
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
        return found

    def _one_of(self, choices: list[Any], depth: int) -> Any:
        is_null = [isinstance(c, Mapping) and c.get("type") == "null" for c in choices]
        is_small = self._is_small(depth)
        return choices[is_null.index(is_small if is_small in is_null else not is_small)]

    def _is_small(self, depth: int) -> bool:
        return self.is_least or depth > _DEEP

    def _typed(self, schema: Schema, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return _number(schema, 0 if self.is_least else 1)
            case "boolean":
                return not self.is_least
        return None

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        names = [name for name in properties if name in required or not self._is_small(depth)]
        return {name: self.value(properties[name], depth + 1) for name in names}

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        least = max(schema.get("minItems", 0), 0 if self._is_small(depth) else 1)
        num_more = min(least, schema.get("maxItems", least), _MAX_ITEMS) - len(first)
        items = [*first, *[schema.get("items", {})] * num_more]
        return [self.value(item, depth + 1) for item in items]

    def _string(self, schema: Schema) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        if schema.get("contentEncoding") == "base64":
            return "" if self.is_least else "AQ=="
        text = self._text.ljust(schema.get("minLength", 0), "1")
        return text[: schema.get("maxLength", len(text))]


class _Least(_Usual):
    is_least = True


class _Odd(_Usual):
    is_odd = True


def _is_free(schema: Schema) -> bool:
    """Whether it takes any text."""
    return schema.get("type") == "string" and not {"pattern", "format"} & schema.keys()


def _number(schema: Schema, usual: int) -> float:
    """`usual`, or else a number at the schema's bounds or between them."""
    step = schema.get("multipleOf", 1)
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    candidates: list[float] = [usual * step]
    if math.isfinite(low):
        candidates += [math.ceil(low / step) * step, (math.ceil(low / step) + 1) * step]
    if math.isfinite(high):
        candidates += [math.floor(high / step) * step, (math.floor(high / step) - 1) * step]
    if schema.get("type") == "number":
        candidates.append((low + high) / 2)
    return next((number for number in candidates if _is_within(schema, number)), usual)


def _is_within(schema: Schema, number: float) -> bool:
    over, under = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )
    is_strictly: bool = over < number < under
    is_loosely: bool = schema.get("minimum", number) <= number <= schema.get("maximum", number)
    return is_strictly and is_loosely
