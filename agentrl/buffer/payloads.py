"""The bytes of a stored trajectory: its columns one after the other, in the order of `COLUMNS`.

Every column has one item per token and a fixed item size, so the number of bytes alone says where
each column lies and a `PayloadRef` needs nothing else. `defect` holds what ingestion refuses: a
trajectory whose columns contradict its report never reaches the learner.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from agentrl.buffer.numbers import report_defect
from agentrl.types import COLUMNS, TOKEN_BYTES, EpisodeReport, SpanKind, TrajectoryMeta

__all__ = ["columns_of", "defect", "select", "split"]

_ITEM_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in COLUMNS.items()}
#: Plain numbers: numpy compares an array with an enum's member one by one.
_SAMPLED, _DEMONSTRATION = int(SpanKind.SAMPLED), int(SpanKind.DEMONSTRATION)
_LAST_KIND = int(max(SpanKind))


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
    if found := report_defect(report):
        return found
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
    if arrays["kinds"].max() > _LAST_KIND:
        return f"column kinds holds {arrays['kinds'].max()}, which is no span kind"
    sampled = arrays["kinds"] == _SAMPLED
    num_sampled = int(np.count_nonzero(sampled))
    if num_sampled != meta.num_sampled:
        return f"{num_sampled} tokens are sampled, the report says {meta.num_sampled}"
    shown = int(np.count_nonzero(arrays["kinds"] == _DEMONSTRATION))
    if shown != meta.num_demonstrated:
        return f"{shown} tokens are demonstrated, the report says {meta.num_demonstrated}"
    if not np.isfinite(arrays["logprobs"]).all():
        return "a logprob is not finite"
    found = _counted(arrays["versions"][sampled])
    if found != [(version, count) for version, count in meta.versions if count]:
        return f"its sampled tokens are of versions {found}, the report says {meta.versions}"
    return None


def _counted(versions: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Each version with the number of its tokens, in rising order. Neighbours are mostly equal, so
    only where they differ is looked at one by one."""
    if len(versions) == 0:
        return []
    starts = [0, *(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist()]
    counts: dict[int, int] = {}
    for start, end in pairwise([*starts, len(versions)]):
        version = int(versions[start])
        counts[version] = counts.get(version, 0) + end - start
    return sorted(counts.items())
