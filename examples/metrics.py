"""Prints metrics of a run, a line for each iteration.

python examples/metrics.py runs/ID train/age_mean buffer/cap
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path


def lines(run: Path, names: list[str]) -> Iterator[str]:
    """A head, and a line of values for each iteration; what is not there is blank."""
    yield "  ".join(["iteration", *names])
    told = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = (line["metrics"] for line in told if "metrics" in line)
    for number, metrics in enumerate(steps, start=1):
        values = (f"{metrics[name]:.4g}" if name in metrics else "" for name in names)
        columns = zip(values, names, strict=True)
        yield "  ".join([f"{number:9}", *(f"{value:>{len(name)}}" for value, name in columns)])


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[1]), sys.argv[2:])))
