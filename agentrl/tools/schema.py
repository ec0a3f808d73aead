"""From a function's hints and docstring to a JSON schema and a strict decoder of its arguments."""

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import msgspec

__all__ = ["ForeignParameters", "Parameters", "read_parameters"]

_ARGS_HEADER = re.compile(r"^(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION = re.compile(r"^[A-Z]\w*:\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class Parameters:
    """What a function takes: its JSON schema and a decoder that forbids unknown fields."""

    def __init__(self, arguments: type[msgspec.Struct], summary: str, is_method: bool) -> None:
        self.summary = summary
        self.is_method = is_method
        self.schema = _json_schema(arguments)
        self._names = arguments.__struct_fields__
        self._decoder = msgspec.json.Decoder(arguments)
        self._only = self._names[0].encode() if len(self._names) == 1 else None

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Arguments by name; a JSON string is the only argument of a function that takes one, or
        what it spells, and an empty one those of a function that takes none. Raises what msgspec
        raises: see `Tool.decode`."""
        arguments = self._sole(raw) if raw[:1] == b'"' else self._decoder.decode(raw)
        return {name: getattr(arguments, name) for name in self._names}

    def _sole(self, raw: bytes) -> msgspec.Struct:
        if self._only is None:
            return self._decoder.decode(b"{}" if raw == b'""' and not self._names else raw)
        try:
            return self._decoder.decode(b'{"%s": %s}' % (self._only, raw))
        except msgspec.ValidationError as error:
            words = msgspec.json.decode(raw, type=str).encode()
            try:
                return self._decoder.decode(b'{"%s": %s}' % (self._only, words))
            except (msgspec.MsgspecError, ValueError):
                raise error from None


class ForeignParameters(Parameters):
    """What a tool takes whose schema somebody else wrote, who also checks its arguments: here they
    only have to be an object. Raises TypeError for a schema of anything else."""

    def __init__(self, schema: dict[str, Any], summary: str) -> None:
        properties = schema.get("properties", {})
        if schema.get("type", "object") != "object" or not isinstance(properties, dict):
            raise TypeError(f"its arguments are {schema!r:.200}, no object with properties")
        self.summary = summary
        self.is_method = False
        self.schema = schema
        self._properties = properties

    def decode(self, raw: bytes) -> dict[str, Any]:
        """As `Parameters.decode`, by names alone."""
        if raw[:1] != b'"' or len(self._properties) > 1:
            return msgspec.json.decode(raw, type=dict[str, Any])
        words = msgspec.json.decode(raw, type=str)
        for name, described in self._properties.items():
            kind = described.get("type", "string") if isinstance(described, dict) else "string"
            return {name: words if kind == "string" else msgspec.json.decode(words)}
        return {} if not words else msgspec.json.decode(raw, type=dict[str, Any])


def read_parameters(fn: Callable[..., Any]) -> Parameters:
    """Read `fn`; TypeError names the parameter that cannot be typed."""
    parameters = list(inspect.signature(fn).parameters.values())
    is_method = bool(parameters) and parameters[0].name == "self"
    if is_method:
        del parameters[0]
    hints = get_type_hints(fn, include_extras=True)
    summary, described = _read_docstring(inspect.getdoc(fn) or "")
    fields = [_field(fn, p, hints, described) for p in parameters]
    try:
        arguments = msgspec.defstruct(
            f"{fn.__name__}_arguments",
            fields,
            kw_only=True,
            frozen=True,
            forbid_unknown_fields=True,
        )
        return Parameters(arguments, summary, is_method)
    except (TypeError, ValueError) as error:
        raise TypeError(f"tool {fn.__name__!r}: its hints have no JSON schema: {error}") from error


def _field(
    fn: Callable[..., Any],
    parameter: inspect.Parameter,
    hints: dict[str, Any],
    described: dict[str, str],
) -> tuple[str, Any] | tuple[str, Any, Any]:
    name = parameter.name
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"tool {fn.__name__!r}: parameter {name!r} must be passable by name")
    if name not in hints:
        raise TypeError(f"tool {fn.__name__!r}: parameter {name!r} has no type hint")
    hint = hints[name]
    if name in described:
        hint = Annotated[hint, msgspec.Meta(description=described[name])]
    if parameter.default is parameter.empty:
        return (name, hint)
    # A factory: defaults that can change (lists, dicts) must not be shared between calls.
    default_factory = functools.partial(copy.deepcopy, parameter.default)
    if isinstance(parameter.default, str | int | float | bool | None):
        return (name, hint, parameter.default)
    return (name, hint, msgspec.field(default_factory=default_factory))


def _json_schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """The object schema of the arguments, shared definitions under `$defs`."""
    _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(arguments.__name__)
    schema.pop("title", None)
    if components:
        schema["$defs"] = components
    return schema


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The part before `Args:` and the description of each argument (Google style)."""
    header = _ARGS_HEADER.search(text)
    if header is None:
        section = _SECTION.search(text)
        return (text[: section.start()] if section else text).strip(), {}
    body = text[header.end() :]
    end = _SECTION.search(body)
    lines = inspect.cleandoc(body[: end.start()] if end else body).splitlines()
    described: dict[str, str] = {}
    name = ""
    for line in lines:
        if match := _ARGUMENT.match(line):
            name = match[1]
            described[name] = match[2].strip()
        elif name and line.strip():
            described[name] = f"{described[name]} {line.strip()}".strip()
    return text[: header.start()].strip(), described
