"""Write `docs/reference.md`: every flag and every command, from what reads them; and
`docs/reference-passed-on.md`: the flags of Megatron, SGLang and its router, each with its help.

python -m scripts.reference            write the pages
python -m scripts.reference --check    exit 1 if one is not what this would write
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

from agentrl.config import answers, peers
from agentrl.config.facts import ALL, FlagFact, Mode
from agentrl.config.fields import Field, own_fields
from agentrl.config.passthrough import FAMILIES
from scripts.commands import commands
from scripts.families import KINDS, others, taken
from scripts.pages import cell, filled, rows, write_pages

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PASSED_ON = DOCS / "reference.md", DOCS / "reference-passed-on.md"
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
        choices or _HELD.get(field.fact.holds) or KINDS[field.kind],
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


def other_names() -> Iterator[str]:
    """Names of other projects that the command line knows and answers."""
    cells = ([f"`{name}`", cell(row.says)] for name, row in answers.rows("peer").items())
    return rows(("flag", "answer"), cells)


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "own": own,
    "other names": other_names,
    **{family: partial(others, family) for family in FAMILIES},
    "commands": commands,
}


def page(text: str) -> str:
    """`text` of the page with its tables as they are to be."""
    return filled(text, SECTIONS)


def passed_on(text: str) -> str:
    """The same of the page of flags that are passed on."""
    return filled(text, {family: partial(taken, family) for family in FAMILIES})


if __name__ == "__main__":
    raise SystemExit(write_pages({PAGE: page, PASSED_ON: passed_on}))
