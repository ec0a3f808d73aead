"""Flags that agentrl passes through: the generated tables of SGLang, its router and Megatron.

A family's flag is written with its prefix (`--sglang-tp-size`, `--router-policy`; Megatron's have
none) and lands under its key in `RunConfig.sglang`, `.router` or `.megatron`. Refused: an unknown
key, a value of another kind and a value outside the choices. What a known flag may not be is the
business of the room that starts the program. The tables are written by `scripts/gen_flags.py`.
"""

import functools
import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = [
    "FAMILIES",
    "Family",
    "Flag",
    "Table",
    "check_key",
    "convert",
    "decoded",
    "family_of",
    "finite",
    "is_passed",
    "spelled",
    "table",
]

Family = Literal["megatron", "sglang", "router"]
FAMILIES: tuple[Family, ...] = ("megatron", "sglang", "router")
_PREFIXES: dict[Family, str] = {"megatron": "--", "sglang": "--sglang-", "router": "--router-"}

_TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    # Also what only the program itself can read (`64k`, `[1]*62`).
    "str": str | int | float | bool | list[Any],
    "json": dict[str, Any],
    "strs": list[str],
    "ints": list[int],
    "floats": list[float],
}


class Flag(msgspec.Struct, frozen=True):
    """One flag of a family. `names` are the program's own spellings, of which `--KEY` is one;
    `default` is as it would be typed, empty where there is none or it is off."""

    key: str
    names: tuple[str, ...]
    kind: str
    help: str
    choices: tuple[str, ...] | None = None
    default: str = ""


class Table(msgspec.Struct, frozen=True):
    """The flags of one installed package, and the version they were read from."""

    package: str
    version: str
    flags: tuple[Flag, ...]


@functools.cache
def table(family: Family) -> Table:
    """The table of a family."""
    path = Path(__file__).with_name("tables") / f"{family}.json"
    return msgspec.json.decode(path.read_bytes(), type=Table)


@functools.cache
def _by_key(family: Family) -> dict[str, Flag]:
    return {flag.key: flag for flag in table(family).flags}


def spelled(family: Family, name: str) -> str:
    """The program's `--name` as agentrl's command line has it."""
    return _PREFIXES[family] + name.removeprefix("--")


def family_of(flag: str) -> tuple[Family, str]:
    """The family of `flag` as the command line has it, and the key there."""
    prefixed: list[Family] = ["sglang", "router"]
    found = [family for family in prefixed if flag.startswith(_PREFIXES[family])]
    family: Family = found[0] if found else "megatron"
    return family, flag.removeprefix(_PREFIXES[family]).replace("-", "_")


def is_passed(flag: str) -> bool:
    """Whether `flag`, as the command line has it, is one of a family's."""
    family, key = family_of(flag)
    return key in _by_key(family)


def check_key(family: Family, key: str, where: str) -> str:
    """`key`, or ConfigError with the nearest keys of the family."""
    if key not in _by_key(family):
        raise ConfigError(
            f"{where}: {key} is no setting of {table(family).package} {table(family).version}"
            f"{nearest(key, _by_key(family))}"
        )
    return key


def decoded(flag: str, value: Any) -> Any:
    """A JSON object that is still text, or ConfigError that names `flag`."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        raise ConfigError(f"{flag} wants a JSON object, not {value!r}: {error}") from None


def finite(flag: str, value: Any) -> Any:
    """`value` of a flag that wants a number, or several: text as Python reads it (`.5`, `1.`), and
    as it is where it is no number. Raises ConfigError for one that is not finite: no setting means
    that, and no process could be told of it."""
    if isinstance(value, list):
        return [finite(flag, item) for item in value]
    try:
        number = float(value) if isinstance(value, str | float) else 0.0
    except ValueError:
        return value
    if not math.isfinite(number):
        raise ConfigError(f"{flag} cannot be {value!r}: it wants a finite number")
    return number if isinstance(value, str) else value


def convert(family: Family, key: str, value: Any) -> Any:
    """`value` (text from a flag, or a value from a file) as the flag's kind, or ConfigError."""
    flag = _by_key(family)[key]
    name = spelled(family, "--" + key.replace("_", "-"))
    if flag.kind == "json":
        value = decoded(name, value)
    number = finite(name, value) if flag.kind in ("float", "floats") else value
    try:
        # Text stays text where the program may read more than a number.
        value = msgspec.convert(number, _TYPES[flag.kind], strict=flag.kind == "str")
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} cannot be {value!r}: {error}") from None
    given = value if isinstance(value, list) else [value]
    if flag.choices and (wrong := [item for item in given if str(item) not in flag.choices]):
        raise ConfigError(f"{name} cannot be {wrong[0]!r}; choose from {', '.join(flag.choices)}")
    return value
