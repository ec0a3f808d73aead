"""Columns of one trajectory as numpy arrays, checked against what the header says of it.

Refuses columns that break an invariant of a trajectory: the buffer checks the same at ingestion, so
a failure here means that a payload was not what its row promised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.types import COLUMNS, SpanKind, TrajectoryRow

__all__ = ["Trajectory", "decode_trajectory"]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The columns of L tokens (see `agentrl.types.COLUMNS`), read-only views of the wire bytes."""

    row: TrajectoryRow
    tokens_L: npt.NDArray[np.int32]
    kinds_L: npt.NDArray[np.uint8]
    logprobs_L: npt.NDArray[np.float32]
    versions_L: npt.NDArray[np.int32]
    turns_L: npt.NDArray[np.int16]

    @property
    def sampled_L(self) -> npt.NDArray[np.bool_]:
        """Where the policy itself wrote the token."""
        return np.equal(self.kinds_L, SpanKind.SAMPLED, dtype=np.bool_)

    @property
    def demonstrated_L(self) -> npt.NDArray[np.bool_]:
        """Where a demonstration wrote the token."""
        return np.equal(self.kinds_L, SpanKind.DEMONSTRATION, dtype=np.bool_)


def decode_trajectory(row: TrajectoryRow, buffers: Sequence[Any]) -> Trajectory:
    """Columns from raw little-endian buffers in the order of `COLUMNS`.

    Raises DataError when lengths, sampled tokens or versions differ from `row.meta`, when an engine
    log-probability is not finite, or when the first token is sampled (nothing predicts it).
    """
    if len(buffers) != len(COLUMNS):
        raise DataError(f"{_name(row)}: {len(buffers)} columns instead of {len(COLUMNS)}")
    for (name, dtype), buffer in zip(COLUMNS.items(), buffers, strict=True):
        expected = row.meta.num_tokens * np.dtype(dtype).itemsize
        if memoryview(buffer).nbytes != expected:
            raise DataError(
                f"{_name(row)}: column {name} has {memoryview(buffer).nbytes} bytes instead of "
                f"{expected} for {row.meta.num_tokens} tokens"
            )
    arrays = [
        np.frombuffer(buffer, dtype=dtype)
        for dtype, buffer in zip(COLUMNS.values(), buffers, strict=True)
    ]
    trajectory = Trajectory(row, *arrays)
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
    if shown != row.meta.num_demonstrated:
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
