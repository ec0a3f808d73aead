"""What agentrl answers to a flag that a launch script of slime, or of a peer, passes.

The rows stand in `tables/answers.toml`: slime's own flags, the names of Megatron, SGLang and its
router that slime's scripts pass, and other projects' names for what agentrl has. Of each there is
one of three answers: it works; it is noted (accepted, told in one line, and nothing changes: it is
already so, or not needed or used here); or it is refused with what to use instead. A name in the
table is never guessed at.

A table is read when a name needs it: most starts pass none.
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.config.passthrough import FAMILIES, Family, spelled

__all__ = [
    "ORIGINS",
    "Asked",
    "FlagAnswer",
    "Missing",
    "Origin",
    "Remark",
    "about_missing",
    "answered",
    "causes",
    "is_ruled",
    "missing",
    "notes",
    "reasons_for_silence",
    "refusals",
    "remarks",
    "row_of",
    "rows",
    "too_much",
]

Origin = Literal["slime", "megatron", "sglang", "router", "peer"]
ORIGINS: tuple[Origin, ...] = ("slime", "megatron", "sglang", "router", "peer")
_NAME = re.compile(r"\{(\w+)\}")
_FILE = Path(__file__).with_name("tables") / "answers.toml"


class Missing(msgspec.Struct, frozen=True):
    """Something that agentrl does not have yet. `what` completes `this waits for `."""

    what: str
    instead: str


class FlagAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to one flag.

    state      works: a flag of agentrl, or one that is passed on; noted; or refused
    says       noted: why it is already so; refused: what to use instead; works: what it means,
               where the help page does not say it
    takes      words that follow the flag: 0 (it is true by itself), 1 or many
    accepts    noted: the values under which it is already so (none named: all of them)
    otherwise  noted: what another value is told, if it waits for nothing
    renamed    the flag that it is turned into, with its value
    rule       name of the rule in `agreements.py` that answers by what else is given
    waits      name of what is missing (`[missing]` of the table): of a refused flag, or of a value
               that `accepts` does not name
    refuses    works: values that wait, with the name of what is missing
    instead    works: values to which slime gives a meaning of their own, with what to use here;
               noted: values that wait for nothing, with why they are refused
    lead       noted: how the line begins; what is "not needed" or "not used" may be off as well
    unused     noted: of what it accepts, the values that are "not used", whatever `lead` says
    differs    in what it differs from slime, and stays so
    cause      of a difference that is told at start where the flag is given: with others in one
               line, whose text stands under this name in `[causes]`; none: in its own words
    same       values under which it does not differ
    quiet      of a difference that is not told: why, by its name in `[quiet]`
    test       the test that shows the meaning
    """

    state: Literal["works", "noted", "refused"]
    says: str = ""
    takes: Literal[0, 1, "many"] = 1
    accepts: tuple[str, ...] = ()
    otherwise: str = ""
    renamed: str = ""
    rule: str = ""
    waits: str = ""
    refuses: dict[str, str] = {}
    instead: dict[str, str] = {}
    lead: Literal["already so", "not needed", "not used"] = "already so"
    unused: tuple[str, ...] = ()
    differs: str = ""
    cause: str = ""
    same: tuple[str, ...] = ()
    quiet: str = ""
    test: str = ""


class Remark(msgspec.Struct, frozen=True):
    """What a user of slime is told at start of a meaning or default that is another one here, where
    the run reads `field` (or is given that setting of Megatron), and the user gives it, does not,
    or either. `{value}` in `text` is the field's, `{NAME}` that of another or a property; `needs`
    names a condition (`differences.py`, `conditions.py`) that must hold too, `lacks` a flag of
    slime's that must not be given, `tells` flags whose difference this is beside the field's."""

    field: str
    when: Literal["said", "unsaid", "always"]
    text: str
    needs: str = ""
    lacks: str = ""
    tells: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Of the field."""
        return "--" + self.field.replace("_", "-")

    def told(self, config: object) -> str:
        """The text, with the values of `config`."""
        return _NAME.sub(lambda found: str(getattr(config, self._named(found[1]))), self.text)

    def _named(self, name: str) -> str:
        return self.field if name == "value" else name


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    remarks: tuple[Remark, ...]
    missing: dict[str, Missing]
    causes: dict[str, str]
    quiet: dict[str, str]
    slime: dict[str, FlagAnswer]
    megatron: dict[str, FlagAnswer]
    sglang: dict[str, FlagAnswer]
    router: dict[str, FlagAnswer]
    peer: dict[str, FlagAnswer]


class Asked(msgspec.Struct, frozen=True):
    """A flag of the table as somebody wrote it. `words`: its value; true or false for a flag that
    takes none."""

    name: str
    spelled: str
    words: tuple[str, ...] = ()

    @property
    def row(self) -> FlagAnswer:
        """The answer to it."""
        return rows()[self.name]

    @property
    def text(self) -> str:
        """The flag, with its value where that decides (a name or a key is nobody's business)."""
        row = self.row
        shown = row.takes and (row.accepts or row.rule or row.refuses or row.instead)
        return " ".join((self.spelled, *(self.words if shown else ())))

    @property
    def lead(self) -> str:
        """How the line of a noted flag begins."""
        return "not used" if " ".join(self.words) in self.row.unused else self.row.lead


@functools.cache
def _table() -> _Table:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Table)


def rows(origin: Origin | None = None) -> dict[str, FlagAnswer]:
    """The rows of one origin, or all of them, by flag: `--sglang-dp-size`."""
    return _rows() if origin is None else _rows_of(origin)


@functools.cache
def _rows_of(origin: Origin) -> dict[str, FlagAnswer]:
    family = next((f for f in FAMILIES if f == origin), None)
    named: dict[str, FlagAnswer] = getattr(_table(), origin)
    return {spelled(family, name) if family else f"--{name}": row for name, row in named.items()}


@functools.cache
def _rows() -> dict[str, FlagAnswer]:
    found: dict[str, FlagAnswer] = {}
    for origin in ORIGINS:
        found |= _rows_of(origin)
    return found


def row_of(name: str) -> tuple[str, FlagAnswer] | None:
    """The flag and its row for a name as somebody wrote it (`--no-X`, `max_lag`), if it has one."""
    flag = "--" + name.lstrip("-").replace("_", "-")
    for known in (flag, flag.replace("--no-", "--", 1)):
        if known in rows():
            return known, rows()[known]
    return None


def answered(family: Family, key: str, value: Any) -> Asked | None:
    """The flag of a family, where the table and not the family's program answers it."""
    flag = spelled(family, "--" + key.replace("_", "-"))
    row = rows().get(flag)
    if row is None or row.state == "works":
        return None
    if isinstance(value, bool):
        written = flag if value else spelled(family, f"--no-{key.replace('_', '-')}")
        return Asked(flag, written, (str(value).lower(),))
    values = value if isinstance(value, list) else [value]
    return Asked(flag, flag, tuple(map(str, values)))


def is_ruled(flag: str, words: tuple[str, ...]) -> bool:
    """Whether the rule of a flag that works answers this value: a function of slime's own."""
    row = rows().get(flag)
    has_rule = row is not None and row.state == "works" and bool(row.rule)
    return has_rule and words[0].startswith(("slime.", "slime_plugins."))


def missing() -> dict[str, Missing]:
    """What flags wait for, by name."""
    return _table().missing


def remarks() -> tuple[Remark, ...]:
    """What a user of slime is told at start."""
    return _table().remarks


def causes() -> dict[str, str]:
    """What is told of the flags of a cause, by its name: completes `FLAGS: `."""
    return _table().causes


def reasons_for_silence() -> dict[str, str]:
    """Why nothing is told at start of a difference, by name."""
    return _table().quiet


def refusals(asked: Iterable[Asked]) -> list[str]:
    """A line for each flag that is refused; those that wait for the same thing share one."""
    waiting: dict[str, list[str]] = {}
    lines = []
    for one in asked:
        if line := _about_words(one):
            lines.append(line)
        elif said := one.row.instead.get(" ".join(one.words)):
            lines.append(f"{one.text}: {said}")
        elif name := _waits(one):
            waiting.setdefault(name, []).append(one.text)
        elif one.row.state == "refused" and not _is_off(one):
            lines.append(f"{one.spelled}: {one.row.says}")
        elif one.row.state == "noted" and not one.row.renamed and not _is_so(one):
            otherwise = one.row.otherwise or f"it cannot be otherwise: {one.row.says}"
            lines.append(f"{one.text}: {otherwise}")
    return lines + [about_missing(name, flags) for name, flags in waiting.items()]


def about_missing(name: str, flags: list[str]) -> str:
    """What `flags` wait for."""
    needed = missing()[name]
    verb = "this waits" if len(flags) == 1 else "these wait"
    return f"{', '.join(dict.fromkeys(flags))}: {verb} for {needed.what}; {needed.instead}"


def notes(asked: Iterable[Asked]) -> Iterator[str]:
    """A line for each flag that is already so, or has another name here."""
    for one in {one.name: one for one in asked}.values():
        if one.row.renamed:
            yield f"{one.spelled} is {one.row.renamed} here: {one.row.says}"
        elif one.row.state == "noted" and not one.row.rule and _is_so(one):
            yield f"{one.text}: {one.lead}: {one.row.says}"
        elif one.row.state == "refused" and _is_off(one):
            yield f"{one.spelled}: already so: it is off"


def _waits(one: Asked) -> str:
    row = one.row
    if row.state == "works":
        return row.refuses.get(" ".join(one.words), "")
    if row.state == "refused":
        return "" if _is_off(one) else row.waits
    return "" if _is_so(one) else row.waits


def too_much(flag: str, word: str) -> str:
    """What is told of a value behind a flag that takes none."""
    return f"{flag} takes no value; {word!r} is too much"


def _about_words(one: Asked) -> str:
    """What is wrong with the number of words; a refused flag is refused with any."""
    row = one.row
    if row.state != "noted" or row.renamed:
        return ""
    if row.takes == 0 and one.words not in (("true",), ("false",)):
        return too_much(one.spelled, " ".join(one.words))
    if row.takes == 1 and len(one.words) != 1:
        return f"{one.spelled} takes one value, not {len(one.words)}"
    return ""


def _is_off(one: Asked) -> bool:
    """Whether a flag that takes no value is turned off, which it is without it."""
    return one.row.takes == 0 and one.words == ("false",)


def _is_so(one: Asked) -> bool:
    row = one.row
    if row.takes == 0 and not row.accepts:
        return one.words == ("true",) or (one.words == ("false",) and row.lead.startswith("not "))
    return not row.accepts or any(_same(" ".join(one.words), value) for value in row.accepts)


def _same(one: str, other: str) -> bool:
    """Equal as text, or as numbers: 0.00 is 0."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()
