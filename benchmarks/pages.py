"""What benchmarks measured, as sections of the pages below `docs/results`.

A page has the numbers of the benchmark NAME between `<!-- NAME -->` and `<!-- end of NAME -->`, and
`report` writes them there. All other words of a page are written by hand.

Rows that are called `thing: number` make a table with a line for each thing. The others stand one
below the other. A value that misses what was asked of it is bold.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.pages import filled, rows

__all__ = ["PAGES", "section", "write_sections"]

PAGES = Path(__file__).resolve().parent.parent / "docs" / "results"
_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

_Row = Mapping[str, Any]


def write_sections(result: Mapping[str, Any], pages: Path = PAGES) -> None:
    """Write what `report` reported into each page that has a place for it."""
    for page in pages.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if f"<!-- {result['name']} -->" in text:
            made = filled(text, {result["name"]: lambda: section(result)})
            page.write_text(made, encoding="utf-8")


def section(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines of markdown: how it was measured, and what was found."""
    yield f"`{result['command']}`, commit {result['commit']}, {result['machine']}"
    alone = [row for row in result["rows"] if ": " not in row["metric"]]
    things = [row for row in result["rows"] if ": " in row["metric"]]
    if alone:
        cells = [[row["metric"], _value(row), row["unit"], row["against"] or ""] for row in alone]
        yield from ("", *rows(["metric", "value", "unit", "asked, or compared with"], cells))
    if things:
        yield from ("", *_by_thing(things))


def _by_thing(found: Sequence[_Row]) -> Iterator[str]:
    """A line for each thing, a column for each number that any of them has."""
    lines: dict[str, dict[str, str]] = {}
    units: dict[str, str] = {}
    for row in found:
        thing, _, number = row["metric"].partition(": ")
        units.setdefault(number, row["unit"])
        lines.setdefault(thing, {})[number] = _value(row)
    head = ["", *(f"{number}, {unit}" for number, unit in units.items())]
    cells = ([thing, *(line.get(each, "-") for each in units)] for thing, line in lines.items())
    return rows(head, cells)


def _value(row: _Row) -> str:
    """Bold where it misses its bar, a comparison with a number; a bar of 0 is the most there is."""
    text = f"{row['value']:g}"
    against = "<= 0" if row["against"] == "0" else row["against"] or ""
    bar = re.fullmatch(r"([<>]=?) ([\d.]+)", against)
    return text if bar is None or _HOLDS[bar[1]](row["value"], float(bar[2])) else f"**{text}**"
