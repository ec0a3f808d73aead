"""Flags of Megatron, SGLang and its router, for the pages of reference: those that are taken, each
with its help and its default, and those that are not, by why."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from agentrl.config import answers
from agentrl.config.answers import FlagAnswer
from agentrl.config.fields import own_fields
from agentrl.config.megatron import MegatronSettings
from agentrl.config.megatron_refused import why_refused
from agentrl.config.passthrough import Family, Flag, spelled, table
from agentrl.serving.launch import ENGINE_DEFAULTS, ROUTER_DEFAULTS
from scripts.pages import cell, rows

__all__ = ["KINDS", "others", "taken"]

#: A value in words, by its kind.
KINDS = {
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

#: What agentrl says where nobody else does, by device ("": on each).
_OURS: dict[Family, dict[str, dict[str, Any]]] = {
    "sglang": {device: ENGINE_DEFAULTS[device] for device in ENGINE_DEFAULTS},
    "router": {"": ROUTER_DEFAULTS},
}


def taken(family: Family) -> Iterator[str]:
    """A table of the flags that the learner reads, or that are handed on to the program."""
    cells = (
        [_named(family, flag), cell(_helped(family, flag)), _kind(flag), _default(family, flag)]
        for flag, row in _answered(family)
        if _is_taken(family, flag, row)
    )
    yield from rows(("flag", "what it is", "value", "default"), cells)


def others(family: Family) -> Iterator[str]:
    """How many are taken, and a table of the flags that are not, by why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    num_taken = 0
    for flag, row in _answered(family):
        if _is_taken(family, flag, row):
            num_taken += 1
        else:
            reasons.setdefault(_reason(flag, row), []).append(_named(family, flag, row))
    name = f"{table(family).package} {table(family).version}"
    how = "read by the learner" if family == "megatron" else "handed on"
    yield f"{num_taken} names of {name} are {how}: [their table](reference-passed-on.md#{family})."
    yield ""
    told = sorted(reasons.items())
    yield from rows(
        ("answer", "why", "flags"),
        ((answer, cell(why), ", ".join(names)) for (answer, why), names in told),
    )


def _answered(family: Family) -> list[tuple[Flag, FlagAnswer | None]]:
    """The flags of a family that no flag of agentrl's own hides, with their rows of answers."""
    hidden = {field.flag for field in own_fields().values()}
    visible = [flag for flag in table(family).flags if _spelled(family, flag) not in hidden]
    return [(flag, answers.rows().get(_spelled(family, flag))) for flag in visible]


def _is_taken(family: Family, flag: Flag, row: FlagAnswer | None) -> bool:
    if row is not None:
        return row.state == "works"
    return family != "megatron" or flag.key in MegatronSettings.__struct_fields__


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
    return _spelled_key(family, flag.key)


def _spelled_key(family: Family, key: str) -> str:
    return spelled(family, "--" + key.replace("_", "-"))


def _helped(family: Family, flag: Flag) -> str:
    """The program's help, with its flags as they are typed here; what it calls a flag and its
    table has not stands without dashes."""
    keys = {name: each.key for each in table(family).flags for name in each.names}

    def typed(found: re.Match[str]) -> str:
        key = keys.get(found[0])
        return found[0].lstrip("-") if key is None else _spelled_key(family, key)

    return re.sub(r"(?<![\w-])--[a-z][\w-]*", typed, flag.help)


def _kind(flag: Flag) -> str:
    return ", ".join(f"`{choice}`" for choice in flag.choices or ()) or KINDS[flag.kind]


def _default(family: Family, flag: Flag) -> str:
    """Of a run that does not say it: agentrl's where it has one, or else the program's."""
    if family == "megatron":
        fields = {field.name: field.default for field in msgspec.structs.fields(MegatronSettings)}
        return _shown(fields.get(flag.key))
    ours = {where: told[flag.key] for where, told in _OURS[family].items() if flag.key in told}
    if len(set(map(str, ours.values()))) == 1 and ours.keys() == _OURS[family].keys():
        return _shown(next(iter(ours.values())))
    said = [f"{_shown(value)} on {where}" for where, value in ours.items()]
    return "; ".join([*filter(None, [_shown(flag.default)]), *said])


def _shown(value: Any) -> str:
    if value is None or value is False or value in ("", msgspec.NODEFAULT):
        return ""
    return "on" if value is True or value == "on" else f"`{value}`"
