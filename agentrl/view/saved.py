"""What `agentrl view` shows of a file: saved rollouts, or what a rank trained on.

A line for each trajectory, and with tokens a line for each token, with its columns under their
names. Ids are not decoded: a file has no tokenizer.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.learner.train_data import read_train_data
from agentrl.rollout_file import read_columns, read_rollouts
from agentrl.types import TrajectoryRow
from agentrl.visible import visible
from agentrl.wire.arrays import as_arrays

__all__ = ["lines_of"]

_ZIP = b"PK\x03\x04"
_Columns = Mapping[str, npt.NDArray[Any]]


def lines_of(path: Path, *, tokens: bool) -> Iterator[str]:
    """The lines that show a file. Raises DataError for one that is of neither kind."""
    with path.open("rb") as file:
        is_trained = file.read(len(_ZIP)) == _ZIP and path.suffix == ".npz"
    yield from (_of_training(path, tokens) if is_trained else _of_rollouts(path, tokens))


def _of_training(path: Path, tokens: bool) -> Iterator[str]:
    for row, columns in read_train_data(path):
        trained = int(columns["mask"].sum()) if "mask" in columns else 0
        advantage = _mean(columns, "advantages")
        yield (
            f"step {row.step}  episode {visible(row.episode)}  {visible(row.role)}#{row.segment}  "
            f"reward {row.reward:g}  advantage {advantage}  tokens {row.num_tokens}  "
            f"trained {trained}"
        )
        if tokens:
            yield from _table(columns)


def _mean(columns: _Columns, name: str) -> str:
    """Of what is trained; `-` where there is none."""
    found = columns.get(name)
    of = found[columns["mask"]] if found is not None and "mask" in columns else None
    return f"{of.mean():.4g}" if of is not None and len(of) else "-"


def _of_rollouts(path: Path, tokens: bool) -> Iterator[str]:
    found = read_rollouts(path)
    for group in found.lease.groups:
        for row in group.trajectories:
            meta = row.meta
            yield (
                f"group {visible(group.group)}  task {visible(group.task)}  "
                f"episode {row.episode.index}  {visible(meta.role)}#{meta.segment}  "
                f"reward {meta.reward:g}  turns {meta.num_turns}  tokens {meta.num_tokens}  "
                f"sampled {meta.num_sampled}"
            )
            if tokens:
                yield from _table(_columns(path, row))


def _columns(path: Path, row: TrajectoryRow) -> _Columns:
    layout, start = row.meta.layout, 0
    with path.open("rb") as file:
        data = read_columns(file, row)
    named: dict[str, Any] = {}
    for column in layout:
        end = start + column.token_bytes * row.meta.num_tokens
        named[column.name] = data[start:end]
        start = end
    return as_arrays(layout, row.meta.num_tokens, named)


def _table(columns: _Columns) -> Iterator[str]:
    """A line for each token; of columns with several values for one, none."""
    flat = {name: each for name, each in columns.items() if each.ndim == 1}
    names = ["tokens", *sorted(flat.keys() - {"tokens"})]
    yield "  ".join(("position", *names))
    for at in range(len(flat["tokens"])):
        yield "  ".join((str(at), *(_shown(flat[name][at]) for name in names)))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) else str(int(value))
