"""The command line: reading it, and the pages of `--help`.

Every flag comes from `RunConfig` (own ones) or from a generated table (passed through); an own flag
hides one of Megatron's of the same name. Which flags were given, and how they were spelled, is kept
beside their values. Refused: unknown flags, with the nearest names or what to write instead, and
values out of bounds; all of them are named, and what is right is read.
"""

import argparse
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NoReturn

import msgspec

from agentrl.config import fields, passthrough, spellings
from agentrl.config.fields import Field, own_fields
from agentrl.config.passthrough import FAMILIES, Family, Flag, spelled
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = ["GivenFlags", "Program", "help_page", "known_flags", "read_flags"]

Program = Literal["train_async", "train"]

_ABOUT = {
    "train_async": "Trains an agent asynchronously: it acts while the learner learns.",
    "train": "Trains an agent synchronously: generate, train, push, again.",
}
_WIDTH = 100
_INDENT = 34


class GivenFlags(msgspec.Struct, frozen=True):
    """What the command line says: values by field, a family's under its name; the spellings of
    these fields; and a line for each flag that is unknown, or whose value cannot be."""

    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    refused: list[str] = []
    config: str | None = None
    dry_run: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message[0].lower() + message[1:])


def read_flags(argv: list[str]) -> GivenFlags:
    """The flags of `argv`. Raises ConfigError for one that lacks its value."""
    space, unknown = _parser().parse_known_args(argv)
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    refused = list(_about_unknown(unknown))
    for name, value in vars(space).items():
        family, dot, key = name.partition(".")
        try:
            if family == "own":
                field = own_fields()[key]
                values[key] = fields.convert(field, value)
                said[key] = field.spelled(value)
            elif dot:
                family = next(f for f in FAMILIES if f == family)
                values.setdefault(family, {})[key] = passthrough.convert(family, key, value)
                flag = spelled(family, "--" + key.replace("_", "-"))
                said[family] = ", ".join(filter(None, (said.get(family), flag)))
        except ConfigError as error:
            refused.append(str(error))
    return GivenFlags(values, said, refused, config=space.config, dry_run=space.dry_run)


@functools.cache
def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", default=None)
    parser.add_argument("--dry-run", action="store_true", default=False)
    for field in own_fields().values():
        _add(parser, [field.flag], f"own.{field.name}", field.kind, "--")
    for family in FAMILIES:
        for flag, names in _visible(family):
            _add(parser, names, f"{family}.{flag.key}", flag.kind, spelled(family, "--"))
    return parser


def _add(parser: _Parser, names: list[str], dest: str, kind: str, prefix: str) -> None:
    if kind == "bool":
        parser.add_argument(*names, dest=dest, action="store_const", const=True)
        negative = [f"{prefix}no-{name.removeprefix(prefix)}" for name in names]
        parser.add_argument(*negative, dest=dest, action="store_const", const=False)
    elif kind in ("list", "strs", "ints", "floats"):
        parser.add_argument(*names, dest=dest, nargs="*")
    else:
        parser.add_argument(*names, dest=dest)


@functools.cache
def _visible(family: Family) -> list[tuple[Flag, list[str]]]:
    """Flags of a family with their spellings here, without those that an earlier flag took."""
    taken = {field.flag for field in own_fields().values()}
    found = []
    for flag in passthrough.table(family).flags:
        names = [spelled(family, n) for n in flag.names if n.startswith("--")]
        names = [name for name in dict.fromkeys(names) if name not in taken]
        if names:
            taken.update(names)
            found.append((flag, names))
    return found


def known_flags() -> list[str]:
    """All spellings, agentrl's own first."""
    found = ["--config", "--dry-run", *(field.flag for field in own_fields().values())]
    for family in FAMILIES:
        found += [name for _, names in _visible(family) for name in names]
    return found


def _about_unknown(words: list[str]) -> Iterator[str]:
    """A line for each word that no flag took; what follows an unknown flag is its value."""
    own = [field.flag for field in own_fields().values()]
    flags = [word.split("=")[0] for word in words if re.match(r"--?[^\d.]", word)]
    if words and not words[0].startswith("-"):
        yield f"unexpected argument {words[0]!r}: values follow their flag, as in --num-rollout 10"
    for name in dict.fromkeys(flags):
        advice = spellings.advice(name)
        close = nearest(name, own) or nearest(name, known_flags())
        yield f"unknown flag {name}" + (f": {advice}" if advice else close)


# ---- help ---------------------------------------------------------------------------------------


def help_page(argv: list[str], program: Program) -> str | None:
    """The page that `--help [PAGE]` in `argv` asks for, or None when it asks for none."""
    for index, text in enumerate(argv):
        if text in ("-h", "--help"):
            following = argv[index + 1 : index + 2]
            return _page(following[0] if following else "", program)
    return None


def _page(name: str, program: Program) -> str:
    if name in ("", "agentrl") or name.startswith("-"):
        return "\n".join(_own_page(program)) + "\n"
    for family in FAMILIES:
        if name == family:
            return "\n".join(_family_page(family)) + "\n"
    raise ConfigError(f"there is no help page {name!r}; pages: agentrl, {', '.join(FAMILIES)}")


def _own_page(program: Program) -> Iterator[str]:
    yield f"usage: python {program}.py [--config FILE] [--dry-run] [flags]"
    yield ""
    yield _ABOUT[program]
    yield "Without a model, data or environment it runs the preset search-r1-local on this machine."
    yield ""
    yield "general:"
    yield from _entry("--help [PAGE]", f"this page, or one of {', '.join(FAMILIES)}")
    yield from _entry("--config FILE", "TOML or YAML file of settings; flags go over it")
    yield from _entry("--dry-run", "print the resolved run, its placement and sizes; start nothing")
    group = ""
    for field in own_fields().values():
        if field.fact.group != group:
            group = field.fact.group
            yield f"\n{group}:"
        yield from _entry(f"{field.flag} {_metavar(field)}".rstrip(), _said(field))
    yield "\npassed through: Megatron's own names, --sglang-* and --router-*; see --help PAGE"


def _family_page(family: Family) -> Iterator[str]:
    table = passthrough.table(family)
    yield f"Flags passed to {table.package} {table.version}. Help is that project's own."
    yield "A flag that agentrl sets itself, or cannot honour, is refused when the run starts.\n"
    for flag, names in _visible(family):
        value = "" if flag.kind == "bool" else flag.kind.upper().removesuffix("S")
        if flag.kind.endswith("s"):
            value += " ..."
        choices = f" ({', '.join(flag.choices)})" if flag.choices else ""
        yield from _entry(f"{', '.join(names)} {value}".rstrip(), flag.help + choices)


def _metavar(field: Field) -> str:
    if field.kind == "choice":
        return f"{{{','.join(field.choices)}}}"
    return {"bool": "", "list": "VALUE ...", "json": "JSON"}.get(field.kind, field.kind.upper())


def _said(field: Field) -> str:
    # A no-break space keeps sign and number on one line; `_entry` makes it a plain one.
    notes = [field.bounds.replace(" ", "\N{NO-BREAK SPACE}")] if field.bounds else []
    if field.kind == "bool":
        off = field.flag.replace("--", "--no-", 1)
        notes.append(f"default: on; {off} turns it off" if field.default else "default: off")
    elif field.default not in (None, [], {}):
        notes.append(f"default: {field.default}")
    return f"{field.help} [{'; '.join(notes)}]" if notes else field.help


def _entry(head: str, text: str) -> Iterable[str]:
    wrapped = textwrap.wrap(text, _WIDTH - _INDENT) or [""]
    lines = [" " * _INDENT + line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
    first = f"  {head}"
    if len(first) + 2 > _INDENT:
        return [first, *lines]
    return [first.ljust(_INDENT) + lines[0][_INDENT:], *lines[1:]]
