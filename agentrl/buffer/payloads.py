"""The bytes of a stored trajectory: its columns one after the other, in the order of `COLUMNS`.

Every column has one item per token and a fixed item size, so the number of bytes alone says where
each column lies and a `PayloadRef` needs nothing else. `defect` holds what ingestion refuses: a
trajectory whose columns contradict its report never reaches the learner.
"""

import math
from collections.abc import Sequence

import numpy as np
from typing_extensions import Buffer

from agentrl.types import COLUMNS, TOKEN_BYTES, EpisodeReport, SpanKind, TrajectoryMeta

__all__ = ["columns_of", "defect", "select", "split"]

_ITEM_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in COLUMNS.items()}


def split(payload: Buffer) -> dict[str, memoryview]:
    """Views of the columns of a payload, as bytes."""
    view = memoryview(payload)
    num_tokens, rest = divmod(view.nbytes, TOKEN_BYTES)
    assert rest == 0, f"{view.nbytes} bytes are no whole number of tokens"
    columns, start = {}, 0
    for name, item_bytes in _ITEM_BYTES.items():
        end = start + num_tokens * item_bytes
        columns[name] = view[start:end]
        start = end
    return columns


def select(payload: Buffer, names: Sequence[str]) -> list[memoryview]:
    """The named columns of a payload, in that order; all of them when `names` is empty."""
    columns = split(payload)
    return [columns[name] for name in (names or COLUMNS)]


def columns_of(columns: Sequence[memoryview], trajectory: int) -> Sequence[memoryview]:
    """The columns of the i-th trajectory of a message."""
    return columns[trajectory * len(COLUMNS) : (trajectory + 1) * len(COLUMNS)]


def defect(report: EpisodeReport, columns: Sequence[memoryview]) -> str | None:
    """Why the columns of a `done` report cannot be trained on, or None."""
    if not report.trajectories:
        return "it is done and has no trajectory"
    expected = len(COLUMNS) * len(report.trajectories)
    if len(columns) != expected:
        return (
            f"{len(columns)} columns came, {len(report.trajectories)} trajectories have {expected}"
        )
    if not math.isfinite(report.reward):
        return f"its reward is {report.reward}"
    for position, meta in enumerate(report.trajectories):
        found = _meta_defect(meta) or _column_defect(meta, columns_of(columns, position))
        if found is not None:
            return f"trajectory {position}: {found}"
    return None


def _meta_defect(meta: TrajectoryMeta) -> str | None:
    if meta.num_tokens < 1:
        return "it has no tokens"
    numbers = [version for version, _ in meta.versions]
    if numbers != sorted(set(numbers)):
        return f"its versions {numbers} are not in rising order"
    total = sum(count for _, count in meta.versions)
    if total != meta.num_sampled:
        return f"its versions count {total} tokens, {meta.num_sampled} were sampled"
    if not math.isfinite(meta.reward):
        return f"its reward is {meta.reward}"
    return None


def _column_defect(meta: TrajectoryMeta, columns: Sequence[memoryview]) -> str | None:
    for (name, item_bytes), column in zip(_ITEM_BYTES.items(), columns, strict=True):
        expected = item_bytes * meta.num_tokens
        if column.nbytes != expected:
            return (
                f"column {name} has {column.nbytes} bytes, {meta.num_tokens} tokens have {expected}"
            )
    arrays = {
        name: np.frombuffer(column, dtype=dtype)
        for (name, dtype), column in zip(COLUMNS.items(), columns, strict=True)
    }
    if arrays["kinds"].max() > max(SpanKind):
        return f"column kinds holds {arrays['kinds'].max()}, which is no span kind"
    sampled = arrays["kinds"] == SpanKind.SAMPLED
    if int(sampled.sum()) != meta.num_sampled:
        return f"{int(sampled.sum())} tokens are sampled, the report says {meta.num_sampled}"
    shown = int((arrays["kinds"] == SpanKind.DEMONSTRATION).sum())
    if shown != meta.num_demonstrated:
        return f"{shown} tokens are demonstrated, the report says {meta.num_demonstrated}"
    if not np.isfinite(arrays["logprobs"]).all():
        return "a logprob is not finite"
    versions, counts = np.unique(arrays["versions"][sampled], return_counts=True)
    found = list(zip(versions.tolist(), counts.tolist(), strict=True))
    if found != [(version, count) for version, count in meta.versions if count]:
        return f"its sampled tokens are of versions {found}, the report says {meta.versions}"
    return None
