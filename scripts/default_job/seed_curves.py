"""What the pages of small environments have in common: numbers by seed, a picture, a table.

The numbers are the rows that `benchmarks/small_job.py` makes, named as in `seed 0, greedy after 10:
reward` and `seed 0, sampled until 5: calls`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from curves import Line, Panel, Vertex, draw
from places import ROOT
from tables import table

__all__ = ["Numbers", "Series", "before_and_after", "head", "numbers_of", "picture", "write"]

_NAME = re.compile(r"seed (?P<seed>\d+), (?P<kind>\w+) \w+ (?P<step>\d+): (?P<what>\w+)")


class Series(NamedTuple):
    """What a curve is of: `kind` is `greedy` (held-out tasks) or `sampled` (those of training)."""

    kind: str
    what: str


#: Values of each series, by seed and iteration.
Numbers = dict[Series, dict[int, dict[int, float]]]


def numbers_of(result: dict[str, Any]) -> Numbers:
    """The rows of the benchmark, by what they are of."""
    found: Numbers = defaultdict(lambda: defaultdict(dict))
    for row in result["rows"]:
        if match := _NAME.fullmatch(row["metric"]):
            series = Series(match["kind"], match["what"])
            found[series][int(match["seed"])][int(match["step"])] = row["value"]
    return found


def picture(
    result: dict[str, Any], titles: Mapping[Series, str], *, held_out: str, about: str
) -> str:
    """The curves, as SVG; `held_out` says what is played greedily, `about` is read aloud."""
    panels = []
    for series, seeds in numbers_of(result).items():
        lines = [
            Line(f"seed {seed}", [Vertex(step, y, y, y) for step, y in sorted(values.items())])
            for seed, values in seeds.items()
        ]
        panels.append(Panel(titles[series], lines, "", height=200))
    note = f"one run for each seed, all from the same model; {held_out}"
    return draw(panels, x_label="iterations", note=note, about=about)


def write(
    benchmark: str,
    place: Path,
    page: Callable[[dict[str, Any]], str],
    picture: Callable[[dict[str, Any]], str],
) -> None:
    """Make `place` and the picture beside it of the results of a benchmark."""
    result = json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_bytes())
    place.write_text(page(result), encoding="utf-8")
    place.with_suffix(".svg").write_text(picture(result), encoding="utf-8")


def head(result: dict[str, Any]) -> str:
    """What was run, where, and of which commit."""
    return f"""    make bench NAME={result["name"]}

|  |  |
| --- | --- |
| machine | {result["machine"]} |
| commit | {result["commit"]} |"""


def before_and_after(result: dict[str, Any], titles: Mapping[Series, str]) -> str:
    """The first and the last point of every curve, as a table of markdown, seed by seed."""
    rows = [
        [str(seed), titles[series], f"{values[min(values)]:.3f}", f"{values[max(values)]:.3f}"]
        for series, seeds in numbers_of(result).items()
        for seed, values in seeds.items()
    ]
    return table(["seed", "", "before", "after"], sorted(rows, key=lambda row: int(row[0])))
