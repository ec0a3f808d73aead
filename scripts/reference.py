"""Write `docs/reference.md`: every flag and every command, from what reads them.

python -m scripts.reference            write the page
python -m scripts.reference --check    exit 1 if it is not what this would write
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

from agentrl.config import answers, peers
from agentrl.config.answers import FlagAnswer
from agentrl.config.facts import ALL, FlagFact, Mode
from agentrl.config.fields import Field, own_fields
from agentrl.config.megatron import MegatronSettings
from agentrl.config.megatron_refused import why_refused
from agentrl.config.passthrough import Family, Flag, spelled, table
from scripts.commands import commands
from scripts.pages import cell, filled, rows, write_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
_HEAD = ("flag", "what it does", "value", "default", "elsewhere", "read by", "on resume")
#: A value in words, by what a flag holds, or else by its kind.
_HELD = {
    "rows": "file or folder",
    "folder": "folder",
    "code": "name or place of code",
    "file": "name or file",
    "model": "model",
    "settings": "file of settings",
    "names": "file of settings",
}
_KINDS = {
    "bool": "on or off",
    "int": "whole number",
    "ints": "whole numbers",
    "float": "number",
    "floats": "numbers",
    "str": "text",
    "list": "words",
    "strs": "words",
    "json": "JSON",
}
_MODES: dict[Mode, str] = {"policy": "training", "supervised": "imitation", "eval": "evaluation"}


def own() -> Iterator[str]:
    """agentrl's own flags, group by group, in the order of the help page."""
    fields = own_fields().values()
    for group, members in itertools.groupby(fields, key=lambda field: field.fact.group):
        yield f"### {group}"
        yield ""
        yield from rows(_HEAD, map(_row, members))
        yield ""


def _row(field: Field) -> list[str]:
    fact = field.fact
    modes = [_MODES[mode] for mode in get_args(Mode) if mode in fact.modes]
    return [
        f"`{field.flag}`",
        cell(field.help),
        _value(field),
        _default(field),
        "; ".join(_elsewhere(field.flag)),
        "; ".join(filter(None, ("" if fact.modes == ALL else ", ".join(modes), _half(fact)))),
        "" if fact.on_resume.kind == "free" else fact.on_resume.kind,
    ]


def _half(fact: FlagFact) -> str:
    """What a run must have, of which it may leave out one half."""
    return f"with {' and '.join(sorted(fact.halves))}" if fact.halves else ""


def _value(field: Field) -> str:
    choices = ", ".join(f"`{choice}`" for choice in field.choices)
    kept = field.fact.synchronous
    said = [
        choices or _HELD.get(field.fact.holds) or _KINDS[field.kind],
        field.bounds,
        "" if kept is None else f"{kept} in `train.py`",
    ]
    return "; ".join(filter(None, said))


def _default(field: Field) -> str:
    if field.kind == "bool":
        return f"on; `{field.spelled(False)}`" if field.default else "off"
    if field.default in (None, [], {}):
        return ""
    shown = field.default if isinstance(field.default, list) else [field.default]
    return f"`{' '.join(map(str, shown))}`"


def _elsewhere(flag: str) -> Iterator[str]:
    """What slime and others call it."""
    row = answers.rows().get(flag)
    if row is not None and row.state == "works":
        differs = "slime ([differs](from-slime.md#what-means-something-else))"
        yield differs if row.differs else "slime"
    for peer, settings in peers.settings().items():
        names = [f"`{name}`" for name, setting in settings.items() if setting.flag == flag]
        if names:
            yield f"{peer} {', '.join(names)}"


def megatron() -> Iterator[str]:
    """Megatron's flags: those that the learner reads, and why the others are refused."""
    found = _answered("megatron")
    read = [flag for flag, row in found if _is_read(flag, row)]
    yield f"The learner reads {len(read)} of Megatron-core {table('megatron').version}'s names:"
    yield ""
    cells = ([_named("megatron", flag), cell(flag.help), _kind(flag)] for flag in read)
    yield from rows(("flag", "what it is", "value"), cells)
    yield ""
    yield from _others("megatron", [(flag, row) for flag, row in found if not _is_read(flag, row)])


def _is_read(flag: Flag, row: FlagAnswer | None) -> bool:
    if row is not None:
        return row.state == "works"
    return flag.key in MegatronSettings.__struct_fields__


def passed_on(family: Family) -> Iterator[str]:
    """Flags of a program that are handed on to it, and those that are not."""
    found = _answered(family)
    handed = [flag for flag, row in found if row is None or row.state == "works"]
    others = [(flag, row) for flag, row in found if row is not None and row.state != "works"]
    yield f"{len(handed)} names of {table(family).package} {table(family).version} are handed on:"
    yield f"{', '.join(_named(family, flag) for flag in handed)}."
    yield ""
    yield from _others(family, others)


def _answered(family: Family) -> list[tuple[Flag, FlagAnswer | None]]:
    """The flags of a family that no flag of agentrl's own hides, with their rows of answers."""
    hidden = {field.flag for field in own_fields().values()}
    visible = [flag for flag in table(family).flags if _spelled(family, flag) not in hidden]
    return [(flag, answers.rows().get(_spelled(family, flag))) for flag in visible]


def _others(family: Family, found: Iterable[tuple[Flag, FlagAnswer | None]]) -> Iterator[str]:
    """Flags that are not read, by why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for flag, row in found:
        reasons.setdefault(_reason(flag, row), []).append(_named(family, flag, row))
    told = sorted(reasons.items())
    yield from rows(
        ("answer", "why", "flags"),
        ((answer, cell(why), ", ".join(names)) for (answer, why), names in told),
    )
    yield ""


def _reason(flag: Flag, row: FlagAnswer | None) -> tuple[str, str]:
    if row is None:
        return "refused", why_refused(flag.key) or "the learner does not read it"
    if row.renamed:
        return "renamed", f"it is {row.renamed} here"
    if row.state == "noted":
        return row.lead, row.says
    return "refused", row.says or f"it waits for {answers.missing()[row.waits].what}"


def _named(family: Family, flag: Flag, row: FlagAnswer | None = None) -> str:
    """As it is typed; of a switch that is already off, the word that says so."""
    name = _spelled(family, flag)
    is_off = row is not None and row.state == "noted" and list(row.accepts) == ["false"]
    return f"`{name.replace('--', '--no-', 1) if is_off else name}`"


def _spelled(family: Family, flag: Flag) -> str:
    return spelled(family, "--" + flag.key.replace("_", "-"))


def _kind(flag: Flag) -> str:
    return ", ".join(f"`{choice}`" for choice in flag.choices or ()) or _KINDS[flag.kind]


def other_names() -> Iterator[str]:
    """Names of other projects that the command line knows and answers."""
    cells = ([f"`{name}`", cell(row.says)] for name, row in answers.rows("peer").items())
    return rows(("flag", "answer"), cells)


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "own": own,
    "other names": other_names,
    "megatron": megatron,
    "sglang": lambda: passed_on("sglang"),
    "router": lambda: passed_on("router"),
    "commands": commands,
}


def page(text: str) -> str:
    """`text` of the page with its tables as they are to be."""
    return filled(text, SECTIONS)


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
