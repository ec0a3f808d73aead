"""What the pages of small environments have in common: numbers by seed, a picture, a table.

The numbers are the rows that `benchmarks/small_job.py` makes, named as in `seed 0, greedy after 10:
reward` and `seed 0, sampled until 5: calls`. No figure of a page is typed by hand, and what it says
is to hold for any outcome.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scripts.default_job.places import ROOT
from scripts.figures import Line, Panel, draw
from scripts.pages import rows

__all__ = ["Numbers", "Series", "SmallPage", "numbers_of"]

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


class SmallPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a small job.

    Attributes:
        name: of the benchmark.
        place: of the page; its picture lies beside it.
        title, text: what it begins with, in markdown. Rows of no seed stand in the text by the word
            before their colon: `{halving:.2f}` is the value of `halving: reward`.
        titles: of the curves.
        alt: what the picture shows; `about`: the same, read aloud.
        num, unit: how many of what are evaluated, as in 256 `games`.
        bounded: why a mean of theirs has a standard error of at most 0.5 / sqrt(num).
    """

    name: str
    place: Path
    title: str
    text: str
    titles: Mapping[Series, str]
    alt: str
    about: str
    num: int
    unit: str
    bounded: str

    def markdown(self, result: dict[str, Any]) -> str:
        """The page."""
        text = self.text.format(**_facts(result))
        return f"""# {self.title}

{_head(result)}

{text}

![{self.alt}]({self._picture.name})

*before* is the first point of each curve, *after* its last:

{_before_and_after(result, self.titles)}

{self.bounded}, so the mean of {self.num} {self.unit} has a standard error of at most
{0.5 / self.num**0.5:.3f}. The machine was shared with other work, so no times are given.
"""

    def picture(self, result: dict[str, Any]) -> str:
        """The curves, as SVG."""
        panels = []
        for series, seeds in numbers_of(result).items():
            lines = [
                Line(f"seed {seed}", [(step, [value]) for step, value in values.items()])
                for seed, values in seeds.items()
            ]
            panels.append(Panel(self.titles[series], lines, "", height=0.7))
        held_out = f"{self.num} held-out {self.unit}"
        note = f"one run for each seed, all from the same model; {held_out}"
        return draw(panels, x_label="iterations", note=note, about=self.about)

    def write(self) -> None:
        """Make the page and its picture of the results that are there."""
        result = json.loads((ROOT / "benchmarks" / "results" / f"{self.name}.json").read_bytes())
        self.place.write_text(self.markdown(result), encoding="utf-8")
        self._picture.write_text(self.picture(result), encoding="utf-8")

    @property
    def _picture(self) -> Path:
        return self.place.with_suffix(".svg")


def _facts(result: dict[str, Any]) -> dict[str, float]:
    """The rows that are of no seed, by the word before their colon."""
    others = [row for row in result["rows"] if not _NAME.fullmatch(row["metric"])]
    return {row["metric"].partition(":")[0]: row["value"] for row in others}


def _head(result: dict[str, Any]) -> str:
    """What was run, where, and of which commit."""
    return f"""    make bench NAME={result["name"]}

|  |  |
| --- | --- |
| machine | {result["machine"]} |
| commit | {result["commit"]} |"""


def _before_and_after(result: dict[str, Any], titles: Mapping[Series, str]) -> str:
    """The first and the last point of every curve, as a table of markdown, seed by seed."""
    cells = [
        [str(seed), titles[series], f"{values[min(values)]:.3f}", f"{values[max(values)]:.3f}"]
        for series, seeds in numbers_of(result).items()
        for seed, values in seeds.items()
    ]
    by_seed = sorted(cells, key=lambda row: int(row[0]))
    return "\n".join(rows(["seed", "", "before", "after"], by_seed))
