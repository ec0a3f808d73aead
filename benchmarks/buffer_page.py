"""`docs/results/buffer.md` from the results of the benchmarks of the buffer and of pushes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT, table

__all__ = ["NAMES", "PAGE", "page", "write"]

PAGE = ROOT / "docs" / "results" / "buffer.md"
NAMES = ("wakeup", "ingest", "idle_episodes", "push")
_HOLDS = {
    "<": float.__lt__,
    "<=": float.__le__,
    ">": float.__gt__,
    ">=": float.__ge__,
    "==": float.__eq__,
}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of the objects that `report` wrote, by the names of their benchmarks."""
    parts = {name: _part(result) for name, result in results.items()}
    template = Path(__file__).with_suffix(".md.in").read_text(encoding="utf-8")
    return template.format(**parts)


def _part(result: Mapping[str, Any]) -> str:
    rows = [
        [row["metric"], _number(row), row["unit"], row["against"] or ""] for row in result["rows"]
    ]
    measured = f"`{result['command']}`, commit {result['commit']}, {result['machine']}"
    return table(["metric", "value", "unit", "asked"], rows) + f"\n\n{measured}"


def _number(row: Mapping[str, Any]) -> str:
    """Bold where it misses its bar: a comparison and a number, or a number alone."""
    text = f"{row['value']:g}"
    if row["against"] is None:
        return text
    sign, _, bar = f"{'' if ' ' in row['against'] else '== '}{row['against']}".partition(" ")
    return text if _HOLDS[sign](float(row["value"]), float(bar)) else f"**{text}**"


def write() -> None:
    """Write the page anew from the results as they lie there; each of the benchmarks does."""
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES}
    PAGE.write_text(page(results), encoding="utf-8")
