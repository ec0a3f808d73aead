"""What ingestion refuses: a trajectory whose columns contradict its report never reaches the
learner. What is stored are its columns one after the other, as its `layout` says.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.buffer.numbers import report_defect
from agentrl.columns import EXCLUDED, dealt
from agentrl.errors import DataError
from agentrl.types import EpisodeReport, SpanKind, TrajectoryMeta
from agentrl.wire.arrays import as_arrays

__all__ = ["defect"]

#: Plain numbers: numpy compares an array with an enum's member one by one.
_SAMPLED, _DEMONSTRATION = int(SpanKind.SAMPLED), int(SpanKind.DEMONSTRATION)
_LAST_KIND = int(max(SpanKind))


def defect(report: EpisodeReport, columns: Sequence[memoryview]) -> str | None:
    """Why the columns of a `done` report cannot be trained on, or None."""
    if report.evaluated is not None:
        return "it is of evaluation sets and has columns" if columns else report_defect(report)
    if not report.trajectories:
        return "it is done and has no trajectory"
    expected = sum(map(len, report.layouts))
    if len(columns) != expected:
        return (
            f"{len(columns)} columns came, {len(report.trajectories)} trajectories have {expected}"
        )
    if found := report_defect(report):
        return found
    pairs = zip(report.trajectories, dealt(report.layouts, columns), strict=True)
    for position, (meta, own) in enumerate(pairs):
        found = _meta_defect(meta) or _column_defect(meta, own)
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


def _column_defect(meta: TrajectoryMeta, columns: Mapping[str, Any]) -> str | None:
    try:
        arrays = as_arrays(meta.layout, meta.num_tokens, columns)
    except DataError as error:
        return str(error)
    if arrays["kinds"].max() > _LAST_KIND:
        return f"column kinds holds {arrays['kinds'].max()}, which is no span kind"
    sampled = arrays["kinds"] == _SAMPLED
    num_sampled = int(np.count_nonzero(sampled))
    if num_sampled != meta.num_sampled:
        return f"{num_sampled} tokens are sampled, the report says {meta.num_sampled}"
    demonstrated = arrays["kinds"] == _DEMONSTRATION
    if EXCLUDED.name in arrays:
        demonstrated &= arrays[EXCLUDED.name] == 0
    shown = int(np.count_nonzero(demonstrated))
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
