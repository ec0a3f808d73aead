"""Arguments that fit a tool's JSON schema: what `agentrl env check` calls tools with.

    usual   every property, with small values of its type
    least   only what is required, as empty and as small as may be
    odd     as the usual, each free text one that spells markers

What a schema itself offers goes first: `const`, `enum`, `examples`. A text that has to match a
pattern cannot be made up: say an example of it, as in
`Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$", examples=["ABC"])]`.

A schema may be anybody's: what is not understood is passed over, and what cannot be made is left
out. Whether arguments fit is for the tool's own decoder to say.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.tools.tool import Tool, ToolError

__all__ = ["arguments_for", "made_up", "never_given"]

Schema = Mapping[str, Any]

#: A text of each format that msgspec and JSON schema have a word for.
_FORMATS = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "time": "03:04:05Z",
    "partial-time": "03:04:05",
    "duration": "P1D",
    "uuid": "12345678-1234-5678-1234-567812345678",
    "decimal": "1",
    "uri": "http://127.0.0.1:1/",
    "email": "someone@example.org",
}
#: Free texts of usual arguments; the later ones are for types whose schema says no more than that
#: they are texts.
_TEXTS = ("1", "2026-01-02T03:04:05", "03:04:05")
#: Depths from which everything is as small as may be, and from which nothing is made: definitions
#: may stand in one another.
_DEEP, _TOO_DEEP = 4, 32
#: Schemas that are looked at for one call, and characters of one text.
_MAX_SCHEMAS, _MAX_CHARS = 1000, 65_536


def arguments_for(tool: Tool[Any], odd: str) -> list[bytes]:
    """JSON of calls that `tool` takes, no two alike; none where none could be made up.

    `odd` is the free text of the odd ones.
    """
    schema = tool.spec.parameters
    usual = [_fitting(tool, _made(schema, text)) for text in _TEXTS]
    best = max(usual, key=lambda made: -1 if made is None else len(made))
    least = _fitting(tool, _made(schema, "", is_least=True))
    strange = _fitting(tool, _made(schema, odd, is_odd=True))
    made = (msgspec.json.encode(call) for call in (best, least, strange) if call is not None)
    return list(dict.fromkeys(made))


def never_given(tool: Tool[Any]) -> list[str]:
    """The parameters of `tool` that none of `arguments_for` gives; one whose own example does not
    fit, with that example."""
    given = {name for raw in arguments_for(tool, odd="1") for name in msgspec.json.decode(raw)}
    properties = _dict(tool.spec.parameters, "properties")
    return [
        f"{name} (its example {examples[0]!r:.40} may not fit)" if examples else name
        for name, examples in ((name, _examples(properties[name])) for name in properties)
        if name not in given
    ]


def _examples(schema: object) -> list[Any]:
    return _list(schema, "examples") if isinstance(schema, Mapping) else []


def made_up(schema: Schema) -> bytes:
    """JSON of usual arguments of a schema, whether or not they fit."""
    return msgspec.json.encode(_made(schema, _TEXTS[0]) or {})


def _made(
    schema: Schema, text: str, *, is_least: bool = False, is_odd: bool = False
) -> dict[str, Any] | None:
    try:
        made = _Maker(schema, text, is_least=is_least, is_odd=is_odd).value(schema, 0)
        msgspec.json.encode(made)
    except (_UnmadeError, UnicodeEncodeError):
        return None
    return made if isinstance(made, dict) else None


def _fitting(tool: Tool[Any], made: dict[str, Any] | None) -> dict[str, Any] | None:
    """`made`, without what may be left out and does not fit; None: it does not fit at all."""
    if made is None or _fits(tool, made):
        return made
    required = _list(tool.spec.parameters, "required")
    kept = {name: value for name, value in made.items() if name in required}
    if not _fits(tool, kept):
        return None
    for name, value in made.items():
        if name not in kept and _fits(tool, {**kept, name: value}):
            kept[name] = value
    return kept


def _fits(tool: Tool[Any], arguments: dict[str, Any]) -> bool:
    try:
        tool.decode(msgspec.json.encode(arguments))
    except ToolError:
        return False
    return True


class _UnmadeError(Exception):
    """There is no such value, or none of a size that anybody would send."""


class _Maker:
    """Makes a value of a schema. Free texts are `text`; `is_odd`: where there are examples too."""

    def __init__(self, root: Schema, text: str, *, is_least: bool, is_odd: bool) -> None:
        self._root = root
        self._text = text
        self._is_least = is_least
        self._is_odd = is_odd
        self._left = _MAX_SCHEMAS

    def value(self, schema: object, depth: int) -> Any:
        """A value that fits `schema`, as far as one can tell. Raises _UnmadeError."""
        if schema is False or depth > _TOO_DEEP:
            raise _UnmadeError
        found = self._resolved(schema)
        if "const" in found:
            return found["const"]
        for key in ("enum", "examples"):
            offered = _list(found, key)
            if offered and not (key == "examples" and self._is_odd and _is_free(found)):
                return offered[0]
        for key in ("anyOf", "oneOf"):
            if choices := _list(found, key):
                return self.value(self._one_of(choices, depth), depth + 1)
        return self._typed(found, depth)

    def _resolved(self, schema: object) -> Schema:
        """`schema` with what it refers to, and with all that it has to be as well."""
        self._spend()
        while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            self._spend()
            schema = self._named(schema["$ref"])
        if not isinstance(schema, Mapping):
            return {}
        merged = dict(schema)
        for part in map(self._resolved, _list(merged, "allOf")):
            properties = {**_dict(merged, "properties"), **_dict(part, "properties")}
            required = [*_list(merged, "required"), *_list(part, "required")]
            merged = {**part, **merged, "properties": properties, "required": required}
        return merged

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _UnmadeError

    def _named(self, reference: str) -> object:
        found: Any = self._root
        for key in reference.removeprefix("#/").split("/"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def _one_of(self, choices: list[Any], depth: int) -> Any:
        def is_null(choice: object) -> bool:
            return isinstance(choice, Mapping) and choice.get("type") == "null"

        if self._is_small(depth):
            # one that leads nowhere else ends what could go on for ever
            ways = [(not is_null(c), str(self._resolved(c)).count("$ref")) for c in choices]
            return choices[ways.index(min(ways))]
        return next((choice for choice in choices if not is_null(choice)), choices[0])

    def _is_small(self, depth: int) -> bool:
        return self._is_least or depth > _DEEP

    def _typed(self, schema: Schema, depth: int) -> Any:
        match self._type_of(schema, depth):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number" as kind:
                usual = 0 if self._is_small(depth) else 1
                return _number(schema, usual, is_whole=kind == "integer")
            case "boolean":
                return not self._is_small(depth)
            case "null":
                return None
        return self._string(schema)

    def _type_of(self, schema: Schema, depth: int) -> object:
        named = schema.get("type")
        kinds = named if isinstance(named, list) else [named]
        if kinds != [None]:
            by_size = sorted(kinds, key=lambda kind: (kind == "null") != self._is_small(depth))
            return next(iter(by_size), None)
        return "object" if _dict(schema, "properties") else "string"

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties, required = _dict(schema, "properties"), _list(schema, "required")
        names = [name for name in properties if name in required or not self._is_small(depth)]
        made = {name: self.value(properties[name], depth + 1) for name in names}
        others = schema.get("additionalProperties")
        least = max(_count(schema, "minProperties"), 0 if self._is_small(depth) else 1)
        if isinstance(others, Mapping) or _count(schema, "minProperties"):
            for number in range(1, least - len(made) + 1):
                made[str(number)] = self.value({} if others is None else others, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        first = _list(schema, "prefixItems")
        least = max(_count(schema, "minItems"), 0 if self._is_small(depth) else 1)
        least = min(least, _count(schema, "maxItems", least), _MAX_SCHEMAS)
        items = [*first, *[schema.get("items", {})] * (least - len(first))]
        return [self.value(item, depth + 1) for item in items]

    def _string(self, schema: Schema) -> str:
        named = schema.get("format")
        if isinstance(named, str) and named in _FORMATS:
            return _FORMATS[named]
        least = _count(schema, "minLength")
        if least > _MAX_CHARS:
            raise _UnmadeError
        if schema.get("contentEncoding") == "base64":
            return "AAAA" * max(math.ceil(least / 4), 0 if self._is_least else 1)
        text = self._text.ljust(least, "1")
        return text[: _count(schema, "maxLength", len(text))]


def _is_free(schema: Schema) -> bool:
    """Whether it takes any text."""
    return schema.get("type") == "string" and not {"pattern", "format"} & schema.keys()


def _number(schema: Schema, usual: int, *, is_whole: bool) -> float:
    """`usual`, or else a number at the schema's bounds or between them."""
    step = _bound(schema, "multipleOf") or 1
    over, under = _bound(schema, "exclusiveMinimum"), _bound(schema, "exclusiveMaximum")
    least, most = _bound(schema, "minimum"), _bound(schema, "maximum")
    lows = [bound for bound in (over, least) if bound is not None]
    highs = [bound for bound in (under, most) if bound is not None]
    candidates: list[float] = [usual * step]
    for bound in (*lows, *highs):
        nearest = bound // step
        candidates += [(nearest + more) * step for more in (-1, 0, 1, 2)]
    if lows and highs and not is_whole:
        candidates.append(max(lows) / 2 + min(highs) / 2)
    for number in candidates:
        is_over = over is None or number > over
        is_under = under is None or number < under
        if is_over and is_under and _is_between(number, least, most):
            return number
    raise _UnmadeError


def _is_between(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


# ---- what a schema says, where it says it as it should -------------------------------------------


def _dict(schema: Schema, key: str) -> dict[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _list(schema: Schema, key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _count(schema: Schema, key: str, otherwise: int = 0) -> int:
    found = schema.get(key)
    return found if isinstance(found, int) and found >= 0 else otherwise


def _bound(schema: Schema, key: str) -> float | None:
    found = schema.get(key)
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 2**63:
        return found
    return None
