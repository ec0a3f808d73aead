"""What a rank trains on, in a file of NumPy (`.npz`) for each iteration: `--save-debug-train-data`.

    tokens, COLUMN ...    all rows, one after the other: a value for each token
    rows                  bytes of JSON: a `SavedRow` for each row, in order

Position t of a row predicts token t + 1, and every column stands under the label that it describes
(`algorithms/rows.py`). A column that some of the rows lack is NaN there, or 0 if it has no NaN. No
pickle is written, and none is read.

Shape suffix: N = tokens of all rows.
"""

import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl import disk
from agentrl.algorithms.rows import Row
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.backend import Models
from agentrl.learner.collective_errors import together
from agentrl.numbered import ranked

__all__ = ["SavedRow", "read_train_data", "save_train_data", "write_train_data"]

logger = logging.getLogger(__name__)

_ROWS = "rows"
#: What NumPy and msgspec raise for bytes that are no such file.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError),
    *(zipfile.BadZipFile, msgspec.MsgspecError),
)
Array = npt.NDArray[Any]


class SavedRow(msgspec.Struct, frozen=True):
    """One trajectory of a step. `credit`: one number, or one for each turn."""

    episode: str
    role: str
    segment: int
    step: int
    reward: float
    credit: float | tuple[float, ...]
    num_tokens: int


def save_train_data(
    config: RunConfig, iteration: int, steps: Sequence[Sequence[Row]], backend: Models
) -> None:
    """Write what this rank's steps train on to the files that the flags name. Ranks that share
    their rows write one. Collective. Raises InfrastructureError, on all ranks, for a disk that
    fails."""
    if not config.saved_train_data:
        return
    replica = getattr(backend, "replica", None)
    is_writer = replica is None or replica.is_source

    def write() -> None:
        for template in config.saved_train_data if is_writer else ():
            path = ranked(template, iteration, backend.data_parallel_rank)
            write_train_data(path, steps)
            logger.info("what iteration %d trains on is in %s", iteration, path)

    together(write, backend.all_gather)


def write_train_data(path: Path, steps: Sequence[Sequence[Row]]) -> None:
    """Write a file at once: a reader finds the one that was there before, or this one."""
    rows = [row for step in steps for row in step]
    saved = [_saved(row, number) for number, step in enumerate(steps) for row in step]
    arrays: dict[str, Any] = {name: _joined(rows, name) for name in _names(rows)}
    arrays["tokens"] = np.concatenate([np.empty(0, np.int32), *(row.tokens_L for row in rows)])
    arrays[_ROWS] = np.frombuffer(msgspec.json.encode(saved), np.uint8)
    disk.make_folder(path.parent)
    beside = path.with_name(path.name + ".tmp")
    beside.unlink(missing_ok=True)
    try:
        with disk.create_file(beside) as file:
            np.savez(file, **arrays)
            disk.sync_file(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    disk.sync(path.parent)


def read_train_data(path: Path) -> Iterator[tuple[SavedRow, Mapping[str, Array]]]:
    """Each row of a file, with its tokens and its columns by name. Raises DataError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        rows = msgspec.json.decode(arrays.pop(_ROWS).tobytes(), type=list[SavedRow])
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is no file of --save-debug-train-data, or it is damaged: {error}"
        ) from error
    ends = np.cumsum([row.num_tokens for row in rows], dtype=np.int64)
    if any(len(each) != (ends[-1] if rows else 0) for each in arrays.values()):
        raise DataError(f"{path} is damaged: its columns are not as long as its rows")
    for row, end in zip(rows, ends.tolist(), strict=True):
        yield row, {name: each[end - row.num_tokens : end] for name, each in arrays.items()}


def _saved(row: Row, step: int) -> SavedRow:
    meta, credit = row.trajectory.meta, row.credit.value
    assert not isinstance(credit, dict)  # a row has its own
    episode = str(row.trajectory.episode)
    length = len(row.tokens_L)
    return SavedRow(episode, meta.role, meta.segment, step, meta.reward, credit, length)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.columns))


def _joined(rows: Sequence[Row], name: str) -> Array:
    """A column of all rows."""
    like = next(row.columns[name] for row in rows if name in row.columns)
    lacking = np.nan if like.dtype.kind == "f" else 0
    return np.concatenate(
        [
            row.columns[name]
            if name in row.columns
            else np.full((len(row.tokens_L), *like.shape[1:]), lacking, like.dtype)
            for row in rows
        ]
    )
