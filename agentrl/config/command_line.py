"""The command line: reading it, and the pages of `--help`.

Every flag comes from `RunConfig` (own ones) or from a generated table (passed through); an own flag
hides one of Megatron's of the same name. Which flags were given, and how they were spelled, is kept
beside their values. A flag of slime's, or of a peer's, that is none of these is answered by the
table of `answers.py`. Refused: unknown flags, with the nearest names, and values out of bounds; all
of them are named, and what is right is read.
"""

import argparse
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from agentrl.config import answers, passthrough, peers
from agentrl.config.answers import Asked
from agentrl.config.fields import Field, own_fields
from agentrl.config.given import GivenFlags, last_of, take_of_family, take_own
from agentrl.config.passthrough import FAMILIES, Family, Flag, spelled
from agentrl.config.renames import in_written_names, read_renamed, written_names
from agentrl.errors import ConfigError
from agentrl.nearest import nearest_flag

__all__ = ["Program", "help_page", "known_flags", "read_flags"]

Program = Literal["train_async", "train"]

_ABOUT = {
    "train_async": "Trains an agent asynchronously: it acts while the learner learns.",
    "train": "Trains an agent synchronously: generate, train, push, again.",
}
#: A word that begins as a flag does and is a value: argparse knows -1 and -0.5 alone.
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$|-inf$", re.IGNORECASE)
#: First words of help texts that keep their capital letter in a sentence.
_NAMES = ("Adam", "Hugging")
_WIDTH = 100
_INDENT = 34


class _Keep(argparse.Action):
    """Keeps a flag's values, each with the name that was written."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, [])
        setattr(namespace, self.dest, [*before, (option_string, values)])


class _Ask(argparse.Action):
    """Keeps a flag of the table as it was written."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flag, truth = self.const
        words = tuple(values) or ((truth,) if answers.rows()[flag].takes == 0 else ())
        one = Asked(flag, str(option_string), words)
        namespace.asked = [*getattr(namespace, "asked", []), one]


def read_flags(argv: list[str]) -> GivenFlags:
    """The flags of `argv`; what is refused of them is told, and the rest is read."""
    renamed = read_renamed([word for word in argv if word != "--"])
    space, unknown = _parser().parse_known_args(renamed.argv)
    notes: list[str] = []
    refused = [*_about_unknown(unknown), *renamed.refused]
    if "--" in argv:
        refused.append("unexpected argument '--': flags follow the program; leave it out")
    asked = [*renamed.asked, *getattr(space, "asked", [])]
    said: dict[str, Any] = {}
    for name, values in vars(space).items():
        try:
            if name != "asked":
                said[name] = _value(notes, _options()[name], values)
        except ConfigError as error:
            refused.append(str(error))
    given = GivenFlags(
        config=said.pop("config", None),
        dry_run=said.pop("dry_run", False),
        asked=asked,
        refused=refused,
        notes=notes,
    )
    for name, value in said.items():
        source, _, key = name.partition(".")
        try:
            if source == "own":
                take_own(given, own_fields()[key], value)
            else:
                take_of_family(given, next(f for f in FAMILIES if f == source), key, value)
        except ConfigError as error:
            given.refused.append(str(error))
    given.refused.extend(answers.refusals(given.asked))
    given.refused[:] = in_written_names(given.refused, written_names(renamed.asked))
    return given


def _value(notes: list[str], option: "_Option", given: list[tuple[str, Any]]) -> Any:
    """The value of a flag that was `given` so. Raises ConfigError where one lacks, or is too much,
    under the name that was written."""
    for name, value in given:
        if option.kind == "bool" and not isinstance(value, bool):
            raise ConfigError(answers.too_much(name, value))
        if value is None or value == []:
            raise ConfigError(f"{name} needs a value: {option.wants}")
    values = [value for _, value in given]
    return last_of(notes, option.names[0], values, option.collects, secret=option.secret)


class _Option(msgspec.Struct, frozen=True):
    """A flag that is read, and no answer of the table. `wants`: its value, in words."""

    names: list[str]
    kind: str
    wants: str
    prefix: str = "--"
    collects: int = 0
    secret: bool = False

    @property
    def takes_many(self) -> bool:
        """Whether any number of words follows."""
        return self.kind in ("list", "strs", "ints", "floats")


@functools.cache
def _options() -> dict[str, _Option]:
    found = {
        "config": _Option(["--config"], "str", "FILE, of settings"),
        "dry_run": _Option(["--dry-run"], "bool", ""),
    }
    for field in own_fields().values():
        wants, fact = f"{_metavar(field)}, {_within(field.help)}", field.fact
        found[f"own.{field.name}"] = _Option(
            [field.flag], field.kind, wants, collects=fact.collects, secret=fact.secret
        )
    for family in FAMILIES:
        for flag, names in _visible(family):
            wants, prefix = f"{_kind(flag)}{_choices(flag)}", spelled(family, "--")
            found[f"{family}.{flag.key}"] = _Option(names, flag.kind, wants, prefix)
    return found


@functools.cache
def _parser() -> argparse.ArgumentParser:
    """Reads any words without an error: what is missing is None, what is too much is kept."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser._negative_number_matcher = _NEGATIVE
    for dest, option in _options().items():
        for names, const in _spellings(option):
            nargs = "*" if option.takes_many else "?"
            parser.add_argument(*names, dest=dest, nargs=nargs, const=const, action=_Keep)
    for name in answers.rows().keys() - set(known_flags()):
        _add_answer(parser, name, "true")
        _add_answer(parser, name.replace("--", "--no-", 1), "false", of=name)
    return parser


def _spellings(option: _Option) -> Iterator[tuple[list[str], bool | None]]:
    """The names of a flag, and what they say alone."""
    if option.kind != "bool":
        yield option.names, None
        return
    yield option.names, True
    yield [f"{option.prefix}no-{n.removeprefix(option.prefix)}" for n in option.names], False


def _add_answer(
    parser: argparse.ArgumentParser, name: str, truth: str, of: str | None = None
) -> None:
    names = dict.fromkeys((name, "--" + name.removeprefix("--").replace("-", "_")))
    parser.add_argument(*names, dest="asked", action=_Ask, nargs="*", const=(of or name, truth))


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
    ours = dict.fromkeys((*(field.flag for field in own_fields().values()), *answers.rows("slime")))
    flags = [word.split("=")[0] for word in words if re.match(r"--?[^\d.]", word)]
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    known = {word: peers.advice(word.split("=")[0]) for word in settings}
    yield from (f"unexpected argument {word!r}: {said}" for word, said in known.items() if said)
    if words and not words[0].startswith("-") and not known.get(words[0]):
        yield f"unexpected argument {words[0]!r}: values follow their flag, as in --num-rollout 10"
    for name in dict.fromkeys(flags):
        advice = peers.advice(name)
        is_passed_on = name.startswith(("--sglang-", "--router-"))
        close = nearest_flag(name, () if is_passed_on else ours)
        close = close or nearest_flag(name, known_flags())
        close = _about_negated(name) or close
        yield f"unknown flag {name}" + (f": {advice}" if advice else close)


def _about_negated(name: str) -> str:
    """What to do in place of `--no-X`, where `--X` takes a value."""
    bare = name.replace("_", "-").replace("--no-", "--", 1)
    is_flag = bare != name.replace("_", "-") and bare in {*known_flags(), *answers.rows()}
    return f"; {bare} takes a value: leave it out instead" if is_flag else ""


def num_values(flag: str) -> int | None:
    """How many words follow a flag; None where that is any number, or nobody's business (of one
    that is unknown, or refused with any)."""
    if (found := answers.row_of(flag)) is not None and found[1].state != "works":
        row = found[1]
        if row.renamed:
            return num_values(row.renamed.split()[0])
        return None if row.state == "refused" or row.takes == "many" else row.takes
    return _nums_of_values().get(flag)


@functools.cache
def _nums_of_values() -> dict[str, int | None]:
    return {
        name: None if option.takes_many else int(const is None)
        for option in _options().values()
        for names, const in _spellings(option)
        for name in names
    }


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
    yield from _entry("--help [PAGE]", f"This page, or one of {', '.join(FAMILIES)}")
    yield from _entry("--config FILE", "TOML or YAML file of settings; flags go over it")
    yield from _entry("--dry-run", "Print the resolved run, its placement and sizes; start nothing")
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
        yield from _entry(f"{', '.join(names)} {_kind(flag)}".rstrip(), flag.help + _choices(flag))


def _kind(flag: Flag) -> str:
    many = " ..." if flag.kind.endswith("s") else ""
    return "" if flag.kind == "bool" else flag.kind.upper().removesuffix("S") + many


def _choices(flag: Flag) -> str:
    return f" ({', '.join(flag.choices)})" if flag.choices else ""


def _metavar(field: Field) -> str:
    if field.kind == "choice":
        return f"{{{','.join(field.choices)}}}"
    return {"bool": "", "list": "VALUE ...", "json": "JSON"}.get(field.kind, field.kind.upper())


def _within(text: str) -> str:
    """A help text inside a sentence: it begins small, unless it begins with a name."""
    word = text.split()[0]
    is_plain = word[1:].islower() and word not in _NAMES
    return text[0].lower() + text[1:] if is_plain else text


def _said(field: Field) -> str:
    # A no-break space keeps sign and number on one line; `_entry` makes it a plain one.
    notes = [field.bounds.replace(" ", "\N{NO-BREAK SPACE}")] if field.bounds else []
    if field.kind == "bool":
        off = field.flag.replace("--", "--no-", 1)
        notes.append(f"default: on; {off} turns it off" if field.default else "default: off")
    elif field.default not in (None, [], {}):
        shown = " ".join(field.default) if field.kind == "list" else field.default
        notes.append(f"default: {shown}")
    return f"{field.help} [{'; '.join(notes)}]" if notes else field.help


def _entry(head: str, text: str) -> Iterable[str]:
    wrapped = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False) or [""]
    lines = [" " * _INDENT + line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
    first = f"  {head}"
    if len(first) + 2 > _INDENT:
        return [first, *lines]
    return [first.ljust(_INDENT) + lines[0][_INDENT:], *lines[1:]]
