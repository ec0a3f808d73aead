"""Arguments that fit a tool's JSON schema: what `env check` calls tools with.

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
    left_out = []
    for name, schema in _said(tool.spec.parameters, "properties", {}).items():
        examples = _said(schema, "examples", []) if isinstance(schema, Mapping) else []
        mistaken = f" (its example {examples[0]!r:.40} may not fit)" if examples else ""
        left_out += [] if name in given else [f"{name}{mistaken}"]
    return left_out


def made_up(schema: Schema) -> bytes:
    """JSON of usual arguments of a schema, whether or not they fit."""
    return msgspec.json.encode(_made(schema, _TEXTS[0]) or {})


def _made(schema: Schema, text: str, **how: bool) -> dict[str, Any] | None:
    try:
        made = _Maker(schema, text, **how).value(schema, 0)
        msgspec.json.encode(made)
    except (_UnmadeError, UnicodeEncodeError):
        return None
    return made if isinstance(made, dict) else None


def _fitting(tool: Tool[Any], made: dict[str, Any] | None) -> dict[str, Any] | None:
    """`made`, without what may be left out and does not fit; None: it does not fit at all."""
    if made is None or _fits(tool, made):
        return made
    required = _said(tool.spec.parameters, "required", [])
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

    def __init__(
        self, root: Schema, text: str, *, is_least: bool = False, is_odd: bool = False
    ) -> None:
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
        is_free = found.get("type") == "string" and not {"pattern", "format"} & found.keys()
        examples = [] if self._is_odd and is_free else _said(found, "examples", [])
        for offered in (_said(found, "enum", []), examples):
            if offered:
                return offered[0]
        for key in ("anyOf", "oneOf"):
            if choices := _said(found, key, []):
                return self.value(self._one_of(choices, depth), depth + 1)
        return self._typed(found, depth)

    def _resolved(self, schema: object) -> Schema:
        """`schema` with what it refers to, and with all that it has to be as well."""
        self._spend()
        while isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
            self._spend()
            schema = self._root
            for key in reference.removeprefix("#/").split("/"):
                schema = schema.get(key) if isinstance(schema, Mapping) else None
        if not isinstance(schema, Mapping):
            return {}
        merged = dict(schema)
        for part in map(self._resolved, _said(merged, "allOf", [])):
            properties = _said(merged, "properties", {}) | _said(part, "properties", {})
            required = _said(merged, "required", []) + _said(part, "required", [])
            merged = {**part, **merged, "properties": properties, "required": required}
        return merged

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _UnmadeError

    def _one_of(self, choices: list[Any], depth: int) -> Any:
        others = [c for c in choices if not (isinstance(c, Mapping) and c.get("type") == "null")]
        if not self._is_small(depth):
            return [*others, *choices][0]
        # null; or else one that leads nowhere else ends what could go on for ever
        nulls = [choice for choice in choices if choice not in others]
        return min(nulls or choices, key=lambda choice: str(self._resolved(choice)).count("$ref"))

    def _is_small(self, depth: int) -> bool:
        return self._is_least or depth > _DEEP

    def _typed(self, schema: Schema, depth: int) -> Any:
        is_small = self._is_small(depth)
        match self._type_of(schema, is_small):
            case "object":
                return self._object(schema, depth, is_small)
            case "array":
                return self._array(schema, depth, is_small)
            case "integer" | "number" as kind:
                return _number(schema, 0 if is_small else 1, is_whole=kind == "integer")
            case "boolean":
                return not is_small
            case "null":
                return None
        return self._string(schema)

    def _type_of(self, schema: Schema, is_small: bool) -> object:
        named = schema.get("type")
        if named is None:
            return "object" if _said(schema, "properties", {}) else "string"
        kinds = named if isinstance(named, list) else [named]
        return next(iter(sorted(kinds, key=lambda kind: (kind == "null") != is_small)), None)

    def _object(self, schema: Schema, depth: int, is_small: bool) -> dict[str, Any]:
        required, others = _said(schema, "required", []), schema.get("additionalProperties")
        made = {
            name: self.value(inner, depth + 1)
            for name, inner in _said(schema, "properties", {}).items()
            if name in required or not is_small
        }
        least = _count(schema, "minProperties")
        if isinstance(others, Mapping) or least:
            for number in range(1, max(least, not is_small) - len(made) + 1):
                made[str(number)] = self.value({} if others is None else others, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int, is_small: bool) -> list[Any]:
        first = _said(schema, "prefixItems", [])
        least = max(_count(schema, "minItems"), not is_small)
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
            return "AAAA" * max(math.ceil(least / 4), not self._is_least)
        text = self._text.ljust(least, "1")
        return text[: _count(schema, "maxLength", len(text))]


def _number(schema: Schema, usual: int, *, is_whole: bool) -> float:
    """`usual`, or else a number at the schema's bounds or between them."""
    step = _bound(schema, "multipleOf") or 1
    over, least = _bound(schema, "exclusiveMinimum"), _bound(schema, "minimum")
    under, most = _bound(schema, "exclusiveMaximum"), _bound(schema, "maximum")
    lows, highs = ([b for b in pair if b is not None] for pair in ((over, least), (under, most)))
    near = [(bound // step + more) * step for bound in [*lows, *highs] for more in (-1, 0, 1, 2)]
    between = [max(lows) / 2 + min(highs) / 2] if lows and highs and not is_whole else []
    for number in (usual * step, *near, *between):
        is_over = (over is None or number > over) and (least is None or number >= least)
        is_under = (under is None or number < under) and (most is None or number <= most)
        if is_over and is_under:
            return number
    raise _UnmadeError


# ---- what a schema says, where it says it as it should -------------------------------------------


def _said(schema: Schema, key: str, otherwise: Any) -> Any:
    """What stands at `key`, if it is of the kind of `otherwise`."""
    found = schema.get(key)
    return found if isinstance(found, type(otherwise)) else otherwise


def _count(schema: Schema, key: str, otherwise: int = 0) -> int:
    found: int = _said(schema, key, otherwise)
    return found if found >= 0 else otherwise


def _bound(schema: Schema, key: str) -> float | None:
    found = schema.get(key)
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 2**63:
        return found
    return None
