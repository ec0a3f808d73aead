"""Write the tables of `docs/from-slime.md` from the table of answers.

What stands between `<!-- NAME -->` and `<!-- end of NAME -->` is written here, the rest by hand.

    python -m scripts.from_slime            write the page
    python -m scripts.from_slime --check    exit 1 if the page differs from the table
"""

import functools
import itertools
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.config import answers
from agentrl.config.answers import FlagAnswer, Origin
from agentrl.config.differences import told_by_remarks
from agentrl.config.fields import own_fields
from agentrl.config.passthrough import FAMILIES, spelled, table
from agentrl.config.run import RunConfig
from scripts import promises
from scripts.pages import cell, filled, write_page
from scripts.promises import WALK
from scripts.slime_files.shown import user_files

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "from-slime.md"
_RECORD = ROOT / "tests" / "fixtures" / "slime_scripts.json"
_BEFORE = ROOT / "scripts" / "slime_scripts" / "before.toml"


#: In place of the values of a flag that is so only where the other flags of the run say the same.
AGREES = "*agreement*"


class Compared(NamedTuple):
    """A flag that scripts use: how many of them, and what it meant before and means now."""

    flag: str
    scripts: int
    before: str
    now: str
    test: str


def uses() -> Counter[str]:
    """How many of slime's shell scripts pass a flag."""
    passed: dict[str, set[str]] = {}
    for row in json.loads(_RECORD.read_text())["scripts"]:
        if row["path"].endswith(".sh"):
            words = (word.partition("=")[0] for word in row["argv"] if word.startswith("--"))
            passed.setdefault(row["path"], set()).update(words)
    return Counter(itertools.chain.from_iterable(passed.values()))


@functools.cache
def _checked() -> dict[str, Any]:
    return tomllib.loads(_BEFORE.read_text())


def compared() -> Iterator[Compared]:
    """The flags that were checked before, in the order of that check."""
    scripts = uses()
    for group in _checked()["checked"]:
        before = ": ".join(filter(None, (group["same"], group.get("difference", ""))))
        for flag in (f"--{name}" for name in group["flags"]):
            row = answers.rows()[flag]
            yield Compared(flag, scripts[flag], before, _now(row), row.test or WALK)


def _now(row: FlagAnswer) -> str:
    if row.state == "works":
        waiting = f"; other values wait: {', '.join(row.refuses)}" if row.refuses else ""
        return (f"differs: {row.differs}" if row.differs else "as in slime") + waiting
    if row.state == "noted":
        return f"{row.lead}: {row.says}" + (f"; differs: {row.differs}" if row.differs else "")
    return f"waits for {answers.missing()[row.waits].what}" if row.waits else f"refused: {row.says}"


def most_used() -> Iterator[str]:
    """What flags meant before and mean now; those of which the same is to be said share a line."""
    shared: dict[tuple[str, ...], list[Compared]] = {}
    for one in compared():
        shared.setdefault((one.before, one.now, one.test), []).append(one)
    yield f"Before is {_checked()['date']}, with agentrl {_checked()['commit']}."
    yield ""
    yield "| flag | scripts | before | now | test |"
    yield "| --- | --- | --- | --- | --- |"
    for (before, now, test), flags in sorted(shared.items(), key=lambda item: -_most(item[1])):
        names = ", ".join(f"`{one.flag}`" for one in flags)
        least, most = min(one.scripts for one in flags), _most(flags)
        scripts = str(most) if least == most else f"{least} to {most}"
        yield f"| {names} | {scripts} | {cell(before)} | {cell(now)} | `{test}` |"


def _most(flags: list[Compared]) -> int:
    return max(one.scripts for one in flags)


def differences() -> Iterator[str]:
    """What means something else, and stays so."""
    yield "| flag | here | told at start |"
    yield "| --- | --- | --- |"
    rows = answers.rows()
    for name, row in sorted(rows.items()):
        if row.differs:
            why = answers.reasons_for_silence().get(row.quiet, "yes")
            yield f"| `{name}` | {cell(row.differs)} | {why} |"
    defaults = RunConfig()
    for remark in answers.remarks():
        if remark.flag not in rows:
            yield f"| `{remark.flag}` | {cell(remark.told(defaults))} | yes |"
    yield ""
    yield (
        "A run that is started by slime's flags tells which of them hold in it. *flags* stands for "
        "the flags that you gave:"
    )
    yield ""
    for remark in answers.remarks():
        yield f"- {cell(remark.told(defaults))}"
    for text in answers.causes().values():
        yield f"- *flags*: {cell(text)}"
    for name, row in sorted(rows.items()):
        if row.differs and not (row.quiet or row.cause or name in told_by_remarks()):
            yield f"- `{name}`: {cell(row.differs)}"


def works() -> Iterator[str]:
    """Flags that work, by origin."""
    helps = _helps()
    titles: dict[Origin, str] = {
        "slime": "Slime's own",
        "megatron": "Megatron's",
        "sglang": "SGLang's",
        "router": "The router's",
    }
    for origin, title in titles.items():
        found = {n: r for n, r in answers.rows(origin).items() if r.state == "works"}
        yield f"### {title}: {len(found)}"
        yield ""
        own = sorted(found.keys() & _own_helps().keys()) if origin == "megatron" else []
        if own:
            yield (
                f"{len(own)} of these are flags of agentrl too (such as `{own[0]}`). The "
                "[reference](reference.md) has them among [its own](reference.md#agentrls-own)."
            )
            yield ""
        yield "| flag | meaning |"
        yield "| --- | --- |"
        for name, row in found.items():
            yield f"| `{name}` | {cell(row.says or helps.get(name, ''))} |"
        yield ""


def noted() -> Iterator[str]:
    """Flags that are accepted and change nothing."""
    yield "| flag | with | why |"
    yield "| --- | --- | --- |"
    for name, row in _of_state("noted"):
        if row.renamed:
            continue
        flag = name.replace("--", "--no-", 1) if row.accepts == ("false",) else name
        values = " or ".join(f"`{value}`" for value in row.accepts if row.takes)
        otherwise = f"; refused: {row.otherwise}" if row.rule and row.otherwise else ""
        lead = "" if row.lead == "already so" else f"{row.lead}: "
        unused = f"; {' and '.join(row.unused)} is not used" if row.unused else ""
        differs = f"; differs: {row.differs}" if row.differs else ""
        why = cell(lead + row.says + unused + otherwise + differs)
        yield f"| `{flag}` | {AGREES if row.rule else values} | {why} |"


def renamed() -> Iterator[str]:
    """Flags that have another name today."""
    yield "| slime's scripts | here | why |"
    yield "| --- | --- | --- |"
    for name, row in _of_state("noted"):
        if row.renamed:
            yield f"| `{name}` | `{row.renamed}` | {cell(row.says)} |"


def waiting() -> Iterator[str]:
    """Flags and values that are refused until something is there."""
    yield "| word | what is missing | flags | until then |"
    yield "| --- | --- | --- | --- |"
    for key, needed in answers.missing().items():
        flags = ", ".join(_waiting_for(key))
        instead = needed.instead.removeprefix("until then ")
        yield f"| {key} | {cell(needed.what)} | {flags} | {cell(instead)} |"


def refused() -> Iterator[str]:
    """Flags that are refused with something to use instead."""
    yield "| flag | what to do |"
    yield "| --- | --- |"
    for name, row in _of_state("refused"):
        if not row.waits:
            yield f"| `{name}` | {cell(row.says)} |"


def _waiting_for(key: str) -> Iterator[str]:
    for name, row in answers.rows().items():
        if row.waits == key:
            others = row.state == "noted" and row.takes != 0
            yield f"`{name}` (other values)" if others else f"`{name}`"
        yield from (f"`{name} {value}`" for value, needed in row.refuses.items() if needed == key)


def _of_state(state: str) -> Iterator[tuple[str, FlagAnswer]]:
    for name, row in answers.rows().items():
        if row.state == state and name not in answers.rows("peer"):
            yield name, row


def _helps() -> dict[str, str]:
    found = _own_helps()
    for family in FAMILIES:
        for flag in table(family).flags:
            for name in flag.names:
                found.setdefault(spelled(family, name), flag.help)
    return found


def _own_helps() -> dict[str, str]:
    return {field.flag: field.help for field in own_fields().values()}


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "most used": most_used,
    "promises": promises.lines,
    "differences": differences,
    "works": works,
    "noted": noted,
    "renamed": renamed,
    "waiting": waiting,
    "refused": refused,
    "user files": user_files,
}


def page(text: str) -> str:
    """`text` of the page with its tables as they are to be."""
    return filled(text, SECTIONS)


if __name__ == "__main__":
    raise SystemExit(write_page(PAGE, page))
