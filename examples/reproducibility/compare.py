"""Says where two runs differ, and fails if they do.

python examples/reproducibility/compare.py runs/FIRST runs/SECOND
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Metrics that no clock and no load of the host changes.
KINDS = ("rollout/", "train/")


def learnt(run: Path) -> list[dict[str, Any]]:
    """What each iteration sampled and trained, in numbers."""
    told = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    steps = (line["metrics"] for line in told if "metrics" in line)
    return [{name: step[name] for name in step if name.startswith(KINDS)} for step in steps]


def differences(first: Path, second: Path) -> Iterator[str]:
    """A line for each iteration and file in which the runs are not the same, bit for bit."""
    for number, (one, other) in enumerate(zip(learnt(first), learnt(second), strict=True), start=1):
        names = sorted(
            name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
        )
        if names:
            yield f"iteration {number}: {', '.join(names)}"
    weights = "hf/model.safetensors"
    if (first / weights).read_bytes() != (second / weights).read_bytes():
        yield weights


if __name__ == "__main__":
    found = list(differences(Path(sys.argv[1]), Path(sys.argv[2])))
    print("\n".join(found) if found else "the same: all metrics of all iterations, and the weights")
    sys.exit(bool(found))
