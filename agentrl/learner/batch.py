"""Trajectories become packed micro-batches whose columns stand under the label they describe.

Position t of a sequence predicts token t + 1; every column here is therefore the trajectory's
column shifted left by one, and empty at the last position. Invariant I5: `mask` is true only where
the label was SAMPLED by the policy and is not excluded.

Shape suffixes: L = tokens of one trajectory, T = tokens of one micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from agentrl.learner.backend import MicroBatch
from agentrl.learner.packing import first_fit_decreasing
from agentrl.learner.plan import PlannedRow
from agentrl.learner.rows import Trajectory
from agentrl.learner.staleness import (
    Excluded,
    excluded_reasons,
    off_policy_turns,
    token_ages,
)
from agentrl.lineage import Lineage

__all__ = ["BatchCounts", "BatchRules", "TrainSequence", "build_sequence", "pack", "shift"]

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What decides which sampled tokens are trained in iteration `number`. `score_all`: the loss
    may read the log-probability of any label, not only of sampled ones."""

    number: int
    lineage: Lineage
    max_staleness: int
    mask_off_policy_turns: bool = False
    score_all: bool = False


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What masking did, in tokens unless said otherwise. num_masked: sampled but excluded, for any
    reason; num_removed: in payloads that failed their checksum. A turn is masked when any of its
    sampled tokens is; num_missing counts trajectories."""

    num_trained: int = 0
    num_masked: int = 0
    num_stale: int = 0
    num_off_policy: int = 0
    num_removed: int = 0
    num_turns: int = 0
    num_masked_turns: int = 0
    num_missing: int = 0

    def __add__(self, other: "BatchCounts") -> "BatchCounts":
        return BatchCounts(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        """The counts in the order of the fields."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One trajectory with its label-aligned columns. `max_trained_age`: -1 when none is trained."""

    tokens_L: npt.NDArray[np.int32]
    columns: dict[str, npt.NDArray[np.generic]]
    counts: BatchCounts
    max_trained_age: int


def build_sequence(planned: PlannedRow, trajectory: Trajectory, rules: BatchRules) -> TrainSequence:
    """Columns of a trajectory, aligned with its labels:

    mask: bool, trained. scored, sampled: bool, sampled (before masking). mu: float32, the engine's
    log-probability of the label. advantages, weights: float32. ages: int32, -1 if not sampled.
    turns: int16, -1 in the prompt.
    """
    sampled_L = trajectory.sampled_L
    versions_L = np.where(sampled_L, trajectory.versions_L, -1).astype(np.int32)
    ages_L = token_ages(rules.lineage, versions_L, rules.number)
    off_policy_L = (
        off_policy_turns(trajectory.versions_L, trajectory.turns_L, sampled_L)
        if rules.mask_off_policy_turns
        else None
    )
    reasons_L = excluded_reasons(ages_L, sampled_L, off_policy_L, rules.max_staleness)
    trained_L = sampled_L & (reasons_L == 0)
    columns = {
        "mask": shift(trained_L, False),
        "sampled": shift(sampled_L, False),
        "scored": shift(sampled_L | rules.score_all, False),
        "mu": shift(trajectory.logprobs_L, 0.0),
        "advantages": np.full(len(sampled_L), planned.advantage, dtype=np.float32),
        "weights": np.full(len(sampled_L), planned.weight, dtype=np.float32),
        "ages": shift(ages_L.astype(np.int32), -1),
        "turns": shift(trajectory.turns_L, -1),
    }
    columns |= {c.name: shift(values_L, c.fill) for c, values_L in trajectory.optional.items()}
    return TrainSequence(
        tokens_L=trajectory.tokens_L,
        columns=columns,
        counts=_count(trained_L, sampled_L, reasons_L, trajectory.turns_L),
        max_trained_age=int(ages_L[trained_L].max(initial=-1)),
    )


def pack(sequences: Sequence[TrainSequence], max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of whole sequences, at most `max_tokens` tokens each; a longer one is alone."""
    bins = first_fit_decreasing([len(s.tokens_L) for s in sequences], max_tokens)
    return [_concatenate([sequences[i] for i in items]) for items in bins]


def _concatenate(sequences: Sequence[TrainSequence]) -> MicroBatch:
    lengths = [len(sequence.tokens_L) for sequence in sequences]
    columns = {
        name: torch.from_numpy(np.concatenate([s.columns[name] for s in sequences]))
        for name in sequences[0].columns
    }
    return MicroBatch(
        tokens_T=_int64([s.tokens_L for s in sequences]),
        labels_T=_int64([shift(s.tokens_L, 0) for s in sequences]),
        positions_T=_int64([np.arange(length) for length in lengths]),
        cu_seqlens=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)),
        max_seqlen=max(lengths),
        columns=columns,
    )


def _int64(arrays: Sequence[npt.NDArray[np.generic]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64))


def shift(column_L: npt.NDArray[ScalarT], last: float) -> npt.NDArray[ScalarT]:
    """`column_L` under the label that it describes: one to the left, `last` at the end."""
    shifted_L = np.empty_like(column_L)
    shifted_L[:-1] = column_L[1:]
    shifted_L[-1] = last
    return shifted_L


def _count(
    trained_L: npt.NDArray[np.bool_],
    sampled_L: npt.NDArray[np.bool_],
    reasons_L: npt.NDArray[np.uint8],
    turns_L: npt.NDArray[np.int16],
) -> BatchCounts:
    return BatchCounts(
        num_trained=int(trained_L.sum()),
        num_masked=int((reasons_L != 0).sum()),
        num_stale=int(((reasons_L & Excluded.STALE) != 0).sum()),
        num_off_policy=int(((reasons_L & Excluded.OFF_POLICY_TURN) != 0).sum()),
        num_turns=len(np.unique(turns_L[sampled_L])),
        num_masked_turns=len(np.unique(turns_L[reasons_L != 0])),
    )
