"""Where the learner writes weights for `--eval-mode apart`, and the driver finds them.

    CHECKPOINTS/evaluated/version_0000007_iteration_0000012/

A folder is whole as soon as it has this name. The driver removes it once its weights are evaluated.
"""

import re
import shutil
from pathlib import Path

import msgspec

from agentrl.types import VersionRow

__all__ = ["EVALUATED", "EvalWeights", "EvalWeightsDue", "folder_of", "remove", "written"]

#: Name of the folder, beside the checkpoints of the run.
EVALUATED = "evaluated"
_NAME = re.compile(r"version_(\d+)_iteration_(\d+)")


class EvalWeights(msgspec.Struct, frozen=True, order=True):
    """Weights in a folder: their version, and how many iterations they contain."""

    version: int
    iteration: int
    folder: Path


class EvalWeightsDue(msgspec.Struct, frozen=True):
    """Which weights are to be evaluated: the first after every `interval` iterations, and with
    `first` those that the run begins with. (The last are too.)"""

    interval: int
    first: bool

    def __call__(self, before: int | None, now: int) -> bool:
        """Whether those after `now` iterations are. `before`: iterations of the version that was
        published before them; None for the first of the run."""
        return self.first if before is None else now // self.interval > before // self.interval


def folder_of(root: Path, row: VersionRow) -> Path:
    """Where the weights of a version are written. `root`: the folder EVALUATED of a run."""
    return root / f"version_{row.version:07d}_iteration_{row.iteration:07d}"


def written(root: Path) -> list[EvalWeights]:
    """The weights in `root`, by version."""
    try:
        names = [path.name for path in root.iterdir()]
    except OSError:
        return []
    found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
    return sorted(EvalWeights(int(m[1]), int(m[2]), root / name) for m, name in found)


def remove(weights: EvalWeights) -> None:
    """Remove weights that nobody reads any more, as far as they can be removed."""
    shutil.rmtree(weights.folder, ignore_errors=True)
