"""agentrl's own flags, read from the fields of `RunConfig`: the one place that defines them.

A field `rollout_batch_size` is the flag `--rollout-batch-size` and the key of a configuration file.
"""

import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Meta

from agentrl.config.facts import FlagFact
from agentrl.config.passthrough import FAMILIES, decoded, finite
from agentrl.config.run import RunConfig
from agentrl.config.settings_file import settings_of, without_nulls
from agentrl.errors import ConfigError

__all__ = [
    "Field",
    "convert",
    "fact_of",
    "own_fields",
    "places_of_weights",
    "synchronous_values",
    "value_in",
]

Kind = Literal["bool", "int", "float", "str", "choice", "json", "list"]


class Field(msgspec.Struct, frozen=True):
    """One flag. `type` carries the bounds; `bounds` is their text for the help page: `>= 1`."""

    name: str
    kind: Kind
    type: Any
    help: str
    fact: FlagFact
    default: Any
    bounds: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """The flag's spelling."""
        return "--" + self.name.replace("_", "-")

    def spelled(self, value: Any) -> str:
        """The flag that gives `value`."""
        return self.flag.replace("--", "--no-", 1) if value is False else self.flag


@functools.cache
def own_fields() -> dict[str, Field]:
    """Every field of `RunConfig` that is a flag of its own, by name and in order."""
    return {name: field for name, field in _all_fields().items() if name not in FAMILIES}


def value_in(values: Mapping[str, Any], name: str) -> Any:
    """The value of a field in a layer of values, or its default where the layer has none."""
    return values.get(name, own_fields()[name].default)


def synchronous_values() -> dict[str, int]:
    """The values that train.py has, and no others, by field."""
    kept = {name: field.fact.synchronous for name, field in own_fields().items()}
    return {name: value for name, value in kept.items() if value is not None}


def places_of_weights() -> dict[str, Field]:
    """The flag that says where each model of the learner lies (a Hugging Face model, a run, its
    checkpoints or Megatron's), by the model."""
    return {field.fact.weights: field for field in own_fields().values() if field.fact.weights}


def fact_of(name: str) -> FlagFact:
    """What there is to say of a field, or of a family."""
    return _all_fields()[name].fact


@functools.cache
def _all_fields() -> dict[str, Field]:
    hints = typing.get_type_hints(RunConfig, include_extras=True)
    infos = msgspec.structs.fields(RunConfig)
    return {info.name: _field(info, hints[info.name]) for info in infos}


def _field(info: msgspec.structs.FieldInfo, hint: Any) -> Field:
    bare, metas = _unwrapped(hint)
    described = next(m for m in metas if m.extra_json_schema is not None)
    default = info.default
    if info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory()
    kind = _kind(bare)
    one = _unwrapped(typing.get_args(bare)[0])[0] if kind == "list" else bare
    literal = typing.get_origin(one) is Literal
    return Field(
        name=info.name,
        kind=kind,
        type=hint,
        help=described.description or "",
        fact=(described.extra_json_schema or {})["fact"],
        default=default,
        bounds=", ".join(_bounds(metas)),
        choices=tuple(map(str, typing.get_args(one))) if literal else (),
    )


def _unwrapped(hint: Any) -> tuple[Any, list[Meta]]:
    """The type without `Annotated` and `None`, and all that was said about it."""
    metas: list[Meta] = []
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            metas += [note for note in notes if isinstance(note, Meta)]
        elif origin in (types.UnionType, typing.Union):
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
        else:
            return hint, metas


def _kind(bare: Any) -> Kind:
    origin = typing.get_origin(bare)
    if origin is Literal:
        return "choice"
    if origin in (dict, list):
        return "json" if origin is dict else "list"
    kinds: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    return kinds[bare]


def _bounds(metas: list[Meta]) -> list[str]:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return [
        f"{sign} {value:g}"
        for meta in metas
        for name, sign in signs.items()
        if (value := getattr(meta, name)) is not None
    ]


def convert(field: Field, value: Any) -> Any:
    """`value` (text from a flag, or a value from a file) as the field's type.

    Raises ConfigError that names the flag, the value and what is allowed.
    """
    is_file = isinstance(value, str) and not value.lstrip().startswith("{")
    if field.fact.holds in ("settings", "names") and is_file:
        place, value = value, settings_of(Path(value), field.flag)
        value = without_nulls(value) if field.fact.holds == "settings" else value
        if not value:
            raise ConfigError(f"{field.flag} {place} holds no settings")
    elif field.kind == "json":
        value = decoded(field.flag, value)
    number = value
    if field.kind == "float":
        number = finite(field.flag, value)
    try:
        return msgspec.convert(number, field.type, strict=False)
    except msgspec.ValidationError as error:
        why = f": {error}"
        if field.choices:
            why = f"; choose from {', '.join(field.choices)}"
        raise ConfigError(f"{field.flag} cannot be {value!r}{why}") from None
