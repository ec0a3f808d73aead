"""Columns of one trajectory as numpy arrays, checked against what the header says of it.

Refuses columns that break an invariant of a trajectory: the buffer checks the same at ingestion, so
a failure here means that a payload was not what its row promised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.columns import COLUMNS, EXCLUDED, Column
from agentrl.errors import DataError
from agentrl.types import SpanKind, TrajectoryRow
from agentrl.wire.arrays import as_arrays

__all__ = ["FetchRows", "Trajectory", "decode_trajectory"]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The columns of L tokens (see `agentrl.columns`), read-only views of the wire bytes.
    `optional`: those that were asked for, each of shape (L, *shape)."""

    row: TrajectoryRow
    tokens_L: npt.NDArray[np.int32]
    kinds_L: npt.NDArray[np.uint8]
    logprobs_L: npt.NDArray[np.float32]
    versions_L: npt.NDArray[np.int32]
    turns_L: npt.NDArray[np.int16]
    optional: dict[Column, npt.NDArray[Any]]

    @property
    def sampled_L(self) -> npt.NDArray[np.bool_]:
        """Where the policy itself wrote the token."""
        return np.equal(self.kinds_L, SpanKind.SAMPLED, dtype=np.bool_)

    @property
    def demonstrated_L(self) -> npt.NDArray[np.bool_]:
        """Where a demonstration wrote the token, and it is to be imitated."""
        shown_L = np.equal(self.kinds_L, SpanKind.DEMONSTRATION, dtype=np.bool_)
        excluded_L = self.optional.get(EXCLUDED)
        return shown_L if excluded_L is None else shown_L & (excluded_L == 0)


#: Trajectories in the order of their rows, with these optional columns; None for a damaged payload.
FetchRows = Callable[[Sequence[TrajectoryRow], Sequence[Column]], Sequence[Trajectory | None]]


def decode_trajectory(
    row: TrajectoryRow, buffers: Sequence[Any], optional: Sequence[Column] = ()
) -> Trajectory:
    """Columns from raw little-endian buffers, in the order of `COLUMNS` and then of `optional`. One
    of these that the trajectory has not is filled.

    Raises DataError when lengths, sampled tokens or versions differ from `row.meta`, when an engine
    log-probability is not finite, or when the first token is sampled (nothing predicts it).
    """
    layout = (*COLUMNS.values(), *optional)
    if len(buffers) != len(layout):
        raise DataError(f"{_name(row)}: {len(buffers)} columns instead of {len(layout)}")
    named = dict(zip((column.name for column in layout), buffers, strict=True))
    there = {column.name: column for column in row.meta.columns}
    for column in optional:
        if there.get(column.name, column) != column:
            raise DataError(f"{_name(row)} has {there[column.name]}, and {column} is asked for")
        if column.name not in there:
            shape = (row.meta.num_tokens, *column.shape)
            named[column.name] = np.full(shape, column.fill, column.dtype)
    try:
        arrays = as_arrays(layout, row.meta.num_tokens, named)
    except DataError as error:
        raise DataError(f"{_name(row)}: {error}") from None
    required = {f"{name}_L": arrays[name] for name in COLUMNS}
    trajectory = Trajectory(row, **required, optional={c: arrays[c.name] for c in optional})
    _check(trajectory)
    return trajectory


def _check(trajectory: Trajectory) -> None:
    row, sampled_L = trajectory.row, trajectory.sampled_L
    if int(sampled_L.sum()) != row.meta.num_sampled:
        raise DataError(
            f"{_name(row)}: {int(sampled_L.sum())} sampled tokens, its row says "
            f"{row.meta.num_sampled}"
        )
    shown = int(trajectory.demonstrated_L.sum())
    is_known = EXCLUDED in trajectory.optional or EXCLUDED not in row.meta.columns
    if is_known and shown != row.meta.num_demonstrated:
        raise DataError(
            f"{_name(row)}: {shown} demonstrated tokens, its row says {row.meta.num_demonstrated}"
        )
    if len(sampled_L) and sampled_L[0]:
        raise DataError(f"{_name(row)}: its first token is sampled, but no prompt precedes it")
    if not np.isfinite(trajectory.logprobs_L[sampled_L]).all():
        raise DataError(f"{_name(row)}: an engine log-probability is not finite")
    versions, counts = np.unique(trajectory.versions_L[sampled_L], return_counts=True)
    found = list(zip(versions.tolist(), counts.tolist(), strict=True))
    if found != [tuple(pair) for pair in row.meta.versions]:
        raise DataError(f"{_name(row)}: versions {found}, its row says {row.meta.versions}")


def _name(row: TrajectoryRow) -> str:
    return f"trajectory of episode {row.episode} ({row.meta.role})"
