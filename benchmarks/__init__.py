"""Benchmarks: `python -m benchmarks.NAME` or `make bench NAME=...`.

Each prints what it measured as a table and, as its last line, one JSON object:
`{"name", "machine", "commit", "command", "rows": [{"metric", "value", "unit", "against"}]}`, where
`against` names what a value is to be compared with, or is null. The same object goes to
`benchmarks/results/NAME.json`, and its numbers to the page that has a place for them
(`benchmarks/pages.py`). A commit that ends in `+` had uncommitted changes in it.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.pages import write_sections

__all__ = ["RESULTS", "ROOT", "Row", "commit", "machine", "positive", "report"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


class Row(msgspec.Struct, frozen=True):
    """One measured number."""

    metric: str
    value: float
    unit: str
    against: str | None = None


def positive(text: str) -> int:
    """A number of a command line: 1 or more, or ValueError, which argparse tells."""
    if (number := int(text)) < 1:
        raise ValueError(number)
    return number


def machine() -> str:
    """Processor, cores, GPUs and Python, on one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {gpus} GPUs, Python {platform.python_version()}"


def commit() -> str:
    """What was measured."""
    git = ("git", "-C", str(ROOT))
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    code = ("agentrl", "scripts", "benchmarks/*.py", "train*.py")
    changed = subprocess.run([*git, "status", "--porcelain", "--", *code], capture_output=True)
    return head.stdout.strip() + ("+" if changed.stdout else "")


def report(name: str, rows: list[Row], command: str | None = None) -> dict[str, Any]:
    """Write the results and their sections of pages, print the table, then the JSON object as the
    last line; returns it."""
    print(f"{name} on {machine()}")
    for row in rows:
        against = f"   (against {row.against})" if row.against else ""
        print(f"  {row.metric:<28} {row.value:>12.3f} {row.unit}{against}")
    result: dict[str, Any] = {
        "name": name,
        "machine": machine(),
        "commit": commit(),
        "command": command or " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]]),
        "rows": [msgspec.structs.asdict(row) for row in rows],
    }
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    write_sections(result)
    print(json.dumps(result))
    return result
