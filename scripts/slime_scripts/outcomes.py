"""What a dry run says of each launch script of slime: the table of `docs/from-slime.md`.

Each recorded argument list goes through `--dry-run` with made models and rows, and once more
without what was refused: whatever the second says, the first has to have said. Ray's address is
given, for such a script starts Ray itself; and a package that is not installed is not counted. So
nothing depends on the devices and packages of this host.

    python -m scripts.slime_scripts.outcomes            write the table
    python -m scripts.slime_scripts.outcomes --check    exit 1 if the page differs
"""

import contextlib
import functools
import io
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.cli.train import run
from agentrl.config import answers
from agentrl.config.explained import Explained, explain
from agentrl.config.launch_script import Argument
from agentrl.errors import AgentRLError
from scripts.pages import cell, rows
from scripts.slime_scripts import made_formats
from scripts.slime_scripts.made_ground import Ground, architecture_of, trained

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/fixtures/slime_scripts.json"
PAGE = ROOT / "docs/from-slime.md"
BEGIN, END = "<!-- scripts -->", "<!-- end of scripts -->"
_OWN_CODE = r"cannot import ([\w.]+):"
_WAITING = re.compile(r"(?:this waits|these wait) for ([^;]+);")
_PLACE = re.compile(r"/(?:tmp|root)/[^\s:,;]+")
#: What a host lacks is no answer to a flag.
_PACKAGE = re.compile(r"the package \w+ is not installed: pip install")
#: In the names of scripts and models that are published quantized.
QUANTIZED = "int4|fp8|deepseek-(r1(?!-distill)|v3)|kimi-k2|minimax-m2|gpt-oss"
#: What a script waits for that no flag of it names: what a dry run says of it, and in short.
WAITS = {
    r"architecture (\w+)(?: \([^)]*\))? is not supported": r"the family of `\1`",
    r"(\d+) layers cannot be divided by --pipeline": r"\1 layers, which Megatron refuses too",
    r"learner ranks cannot hold whole sets of experts of (\d+) ranks": r"\1 ranks",
    _OWN_CODE: r"its own code, `\1`",
    r"the task has no 'label'": "a reward that needs no label",
    r"--n-samples-per-prompt 1 with --advantage-estimator grpo": "groups of more than one",
}


class Recorded(msgspec.Struct, frozen=True):
    """A row of the record."""

    path: str
    program: Literal["train", "train_async"] | None
    argv: tuple[str, ...]
    note: str = ""
    call: int = 1
    mended: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """Of one argument list: the answer to each flag, and what two dry runs say, line by line."""

    recorded: Recorded
    flags: tuple[Explained, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]

    @property
    def has_its_model(self) -> bool:
        """Whether agentrl trains the architecture of its model."""
        return architecture_of(checkpoint_of(self.recorded.argv)) in trained()

    @property
    def stops_at(self) -> frozenset[str]:
        """The flags that the first dry run refuses."""
        return _refused(self.first)

    @property
    def is_quantized(self) -> bool:
        """Whether its model is published so. The model that the dry run makes is in bfloat16."""
        names = (self.recorded.path, checkpoint_of(self.recorded.argv))
        return any(re.search(QUANTIZED, name, re.IGNORECASE) for name in names)


@functools.cache
def _record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


@functools.cache
def records() -> tuple[Recorded, ...]:
    """What scripts pass; that of a mended script in place of a broken one."""
    rows = msgspec.convert(_record()["scripts"], list[Recorded])
    mended = {row.path for row in rows if row.mended}
    return tuple(row for row in rows if row.program and row.mended == (row.path in mended))


def checkpoint_of(argv: tuple[str, ...]) -> str:
    """The model that an argument list names."""
    return argv[argv.index("--hf-checkpoint") + 1]


@functools.cache
def outcome(recorded: Recorded) -> Outcome:
    """Play the two dry runs."""
    with tempfile.TemporaryDirectory() as folder:
        argv = Ground(Path(folder)).placed(recorded.argv)
        first = _dry_run(argv, recorded, folder)
        flags = explain(map(Argument, argv))
        refused = _refused(first)
        left = [w.text for one in flags if one.flag not in refused for w in one.words]
        second = _dry_run(left, recorded, folder) if first else ()
        return Outcome(recorded, tuple(flags), first, second)


def _dry_run(argv: list[str], recorded: Recorded, folder: str) -> tuple[str, ...]:
    """The lines of what is refused."""
    more = ["--dry-run", "--ray-address", "127.0.0.1:6379", "--run-dir", f"{folder}/runs"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run([*argv, *more], recorded.program or "train")
    except AgentRLError as error:
        lines = str(error).replace(folder, "").splitlines()
        return tuple(line for line in lines if not _PACKAGE.search(line))
    return ()


def _refused(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(flag for line in lines for flag in _named(line))


def _named(line: str) -> list[str]:
    """The flags that a line is about: those before it says why. Left out is one whose code is not
    here: the script waits for that code."""
    if re.search(_OWN_CODE, line):
        return []
    head = re.split(r": | with | is | leaves | wants | has ", line)[0]
    return re.findall(r"--[a-z][\w-]*", head) if line.startswith("--") else []


# ---- the table ----------------------------------------------------------------------------------


def section() -> Iterator[str]:
    """The table, line by line: of each script what its first call says."""
    firsts = [outcome(row) for row in records() if row.call == 1]
    passing = [one for one in firsts if not one.second]
    supported = [one for one in firsts if one.has_its_model]
    cycles = Counter(_cycles(one) for one in supported)
    as_published = sum(_cycles(one) == "0" and not one.is_quantized for one in supported)
    yield (
        f"Of {len(firsts)} scripts and launchers, {len(supported)} train a model that agentrl "
        f"trains. Of those {cycles['0']} pass `--dry-run` as they are ({as_published} of them with "
        f"the model as it is published), {cycles['1']} once what is refused is left out, and "
        f"{cycles['-']} wait for something else. In all {len(passing)} pass when it is left out. "
        f"{sum(one.is_quantized for one in passing)} of the {len(passing)} have a model that is "
        "published quantized (\u2020): agentrl refuses such a folder and wants the same model in "
        "bfloat16."
    )
    yield ""
    yield "| script | flags | work | accepted | refused | then |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from map(line, firsts)
    yield ""
    yield "\\* Its author's copy is broken: " + "; ".join(sorted(_notes())) + "."
    yield ""
    yield "Why a flag of the column *refused* is refused, in the first script that has it:"
    yield ""
    yield from rows(("flag", "why"), sorted(_why(firsts).items()))
    yield ""
    yield "The chat format that the models of these scripts have without a flag. Of Kimi K2"
    yield "Thinking no template was at hand; that of Kimi K2 Instruct stands for it:"
    yield ""
    yield from made_formats.table(checkpoint_of(one.recorded.argv) for one in supported)


def _why(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """What a dry run says of a flag that waits for nothing, by flag."""
    found: dict[str, str] = {}
    for line in (line for one in outcomes for line in one.first if not _WAITING.search(line)):
        for flag in _named(line):
            why = _PLACE.sub("FILE", line.removeprefix(flag).lstrip(": "))
            found.setdefault(f"`{flag}`", cell(why))
    return found


def line(one: Outcome) -> str:
    """The line of the table that tells of it."""
    counts = Counter(flag.answer for flag in one.flags)
    mark = " \u2020" if one.is_quantized else ""
    return (
        f"| {_linked(one.recorded)}{mark} | {len(one.flags)} | {counts['works']} "
        f"| {counts['already so'] + counts['noted']} | {_reasons(one)} | {_end(one)} |"
    )


def _cycles(one: Outcome) -> str:
    return "0" if not one.first else "1" if not one.second else "-"


def _linked(recorded: Recorded) -> str:
    record = _record()
    place = f"{record['upstream']}/blob/{record['commit']}/{recorded.path}"
    mark = " \\*" if recorded.mended else ""
    return f"[{Path(recorded.path).name}]({place}){mark}"


def _notes() -> Iterator[str]:
    for row in msgspec.convert(_record()["scripts"], list[Recorded]):
        if row.note:
            yield f"{Path(row.path).name} {row.note.partition(':')[0]}"


def _reasons(one: Outcome) -> str:
    """The refused flags by what they wait for; what else a dry run refuses, by the flag."""
    keys = {needed.what: key for key, needed in answers.missing().items()}
    counts = Counter[str]()
    for line in one.first:
        waits = _WAITING.search(line)
        for flag in _named(line):
            counts[keys[waits[1]] if waits else f"`{flag}`"] += 1
    return ", ".join(f"{what} ({n})" if n > 1 else what for what, n in counts.items()) or "-"


def _end(one: Outcome) -> str:
    waits = dict.fromkeys(short(line) or line for line in one.second)
    return ", ".join(waits) or "passes"


def short(line: str) -> str:
    """What a line of the second dry run waits for; empty where no rule says it."""
    for pattern, text in WAITS.items():
        if found := re.search(pattern, line):
            return found.expand(text)
    return ", ".join(f"`{flag}`" for flag in _named(line))


def page(text: str) -> str:
    """The page with its table as it is to be."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE}: {BEGIN} ... {END} has to stand there once")
    written = "\n".join([BEGIN, *section(), END])
    return re.sub(f"{BEGIN}.*?{END}", lambda _: written, text, count=1, flags=re.DOTALL)


def main() -> int:
    before = PAGE.read_text()
    after = page(before)
    if "--check" in sys.argv:
        print(
            "up to date"
            if after == before
            else "stale; run python -m scripts.slime_scripts.outcomes"
        )
        return int(after != before)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
