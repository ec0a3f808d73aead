"""Counts of a session of the fault tests, and the page docs/results/faults.md that they become.

a test settles (`add`) or wedges (`add_wedge`) -> build/faults.jsonl -> the page (`main`)
"""

import os
import platform
from pathlib import Path

import msgspec

from tests.faults.checker import Findings
from tests.faults.counts import SCALE

__all__ = ["Line", "add", "add_wedge", "page"]

ROOT = Path(__file__).parents[2]
_LINES, _PAGE = ROOT / "build" / "faults.jsonl", ROOT / "docs" / "results" / "faults.md"

_HEAD = """# Faults

`make faults` runs real processes (the buffer's and the workers' production programs, sglang-router,
engines that speak SGLang's protocol, a toy model on the production loop of the learner), ends them
in the ways below, and judges ledger, weights and history afterwards: see
[tests/faults](../../tests/faults/README.md). Written of the counts that each test leaves; when
the full ones were taken, and what was mended on the way, is in the [lab book](../lab.md).

"""


class Line(msgspec.Struct, frozen=True):
    """What one test did and found."""

    promise: str
    scale: str
    faults: int
    groups: int = 0
    trajectories: int = 0
    lost: int = 0
    twice: int = 0
    wedges: int = 0


def add(promise: str, faults: int, findings: Findings, *, is_complete: bool) -> None:
    """Count a run that has been judged. Its groups count once, when it is complete."""
    _append(
        Line(
            promise=promise,
            scale=SCALE,
            faults=faults,
            groups=findings.minted * is_complete,
            trajectories=findings.trajectories * is_complete,
            lost=len(findings.lost),
            twice=len(findings.twice),
        )
    )


def add_wedge(promise: str) -> None:
    """Count a run that stood still."""
    _append(Line(promise=promise, scale=SCALE, faults=0, wedges=1))


def _append(line: Line) -> None:
    _LINES.parent.mkdir(exist_ok=True)
    with _LINES.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def page(lines: list[Line], machine: str) -> str:
    """The page: one row for each promise, and their sum."""
    names = ("faults", "groups", "trajectories", "lost", "twice", "wedges")
    rows: dict[str, list[int]] = {}
    for line in lines:
        row = rows.setdefault(line.promise, [0] * len(names))
        for position, name in enumerate(names):
            row[position] += getattr(line, name)
    rows = dict(sorted(rows.items()))
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)] or [0] * len(names)
    head = "| promise | faults | groups | trajectories | lost | trained twice | wedges |\n"
    rule = "| --- " + "| ---: " * len(names) + "|\n"
    body = "".join(f"| {name} | {' | '.join(map(str, row))} |\n" for name, row in rows.items())
    scale = " and ".join(sorted({line.scale for line in lines}))
    return f"{_HEAD}{head}{rule}{body}\nCounts: {scale}. Machine: {machine}.\n"


def main() -> None:
    """Write the page from the lines of the last session."""
    data = _LINES.read_bytes().splitlines()
    lines = [msgspec.json.decode(line, type=Line) for line in data]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    _PAGE.write_text(page(lines, machine))


if __name__ == "__main__":
    main()
