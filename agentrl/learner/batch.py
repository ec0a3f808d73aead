"""Trajectories become packed micro-batches whose columns stand under the label they describe.

Position t of a sequence predicts token t + 1; every column here is therefore the trajectory's
column shifted left by one, and empty at the last position. Invariant I5: `mask` is true only where
the label was SAMPLED by the policy and is not excluded (or, where dialogues are shown, any label).

Shape suffixes: L = tokens of one trajectory, T = tokens of one micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.rows import TEMPERATURES, MicroBatch, Row
from agentrl.columns import CACHE_VERSIONS, EXCLUDED, Column
from agentrl.errors import DataError
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
from agentrl.types import PayloadRef

__all__ = [
    "BatchCounts",
    "BatchRules",
    "TrainSequence",
    "build_sequence",
    "check_columns",
    "check_masks",
    "micro_batch",
    "pack",
    "shift",
]

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What decides which tokens are trained in iteration `number`: lineage and bounds for those
    that were sampled, `kept` (bool under each label) in trajectories that a function of the user's
    took tokens out of, and the algorithm among what these leave. `temperatures`: as
    `agentrl.config.mixture.temperatures` gives them."""

    number: int
    lineage: Lineage
    algorithm: Algorithm
    of_backend: tuple[Column, ...] = ()
    kept: Mapping[PayloadRef, npt.NDArray[np.bool_]] = field(default_factory=dict)
    temperatures: Mapping[str, float] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is wanted of a trajectory beside the columns that every one has."""
        return (*self.algorithm.needs.columns, *self.of_backend)

    @property
    def fetched(self) -> tuple[Column, ...]:
        """What is asked for of a trajectory beside the columns that every one has."""
        kept = (CACHE_VERSIONS,) if self.algorithm.cfg.keeps_cache else ()
        return (EXCLUDED, *kept, *self.columns)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What masking did, in tokens unless said otherwise. num_masked: sampled but excluded, for any
    reason; num_removed: in payloads that failed their checksum, or in other trajectories of such
    an episode where the algorithm takes whole ones. A turn is masked when any of its
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


class TrainSequence(NamedTuple):
    """One trajectory to train. `reasons_L`: why each sampled token is excluded, under its label;
    None for a dialogue that is shown."""

    row: Row
    reasons_L: npt.NDArray[np.uint8] | None

    @property
    def counts(self) -> BatchCounts:
        """What masking did to it, by the mask that it has now."""
        columns = self.row.columns
        if self.reasons_L is None:
            return BatchCounts(num_trained=int(columns["mask"].sum()))
        return _count(columns, self.reasons_L)

    @property
    def max_trained_age(self) -> int:
        """-1 when no sampled token is trained."""
        if self.reasons_L is None:
            return -1
        columns = self.row.columns
        return int(columns["ages"][columns["mask"]].max(initial=-1))


def build_sequence(planned: PlannedRow, trajectory: Trajectory, rules: BatchRules) -> TrainSequence:
    """Columns of a trajectory, aligned with its labels. Of what was played:

    mask: bool, trained. scored, sampled: bool, sampled (before masking). mu: float32, the engine's
    log-probability of the label. weights: float32, reciprocal of the denominator. ages: int32, -1
    if not sampled. turns: int16, -1 in the prompt. cached, where engines keep caches over pushes:
    int32, by how many versions what the turn read may be older than its weights; -1 if not known.

    temperatures, where parts of a mixture have their own: float32.

    Of a dialogue that is shown: mask, scored, weights, and demonstrated: bool. Of both: what the
    algorithm needs, filled where the trajectory has none of it.
    """
    algorithm, length = rules.algorithm, len(trajectory.tokens_L)
    columns: dict[str, npt.NDArray[Any]] = {
        column.name: shift(trajectory.optional[column], column.fill) for column in rules.columns
    }
    columns["weights"] = np.full(length, planned.weight, dtype=np.float32)
    row = Row(
        planned.row,
        planned.credit,
        trajectory.tokens_L,
        columns,
        planned.first_turn,
        planned.share,
    )
    if not algorithm.needs.engines:
        columns["demonstrated"] = shift(trajectory.demonstrated_L, False)
        columns["mask"] = np.arange(length) < length - 1
        _narrow(row, algorithm)
        columns["scored"] = columns["mask"]
        return TrainSequence(row, None)
    reasons_L = _played(row, trajectory, rules)
    if rules.temperatures:
        columns[TEMPERATURES] = np.full(length, _temperature(planned, rules), dtype=np.float32)
    _narrow(row, algorithm)
    columns["scored"] = columns["sampled"] | algorithm.needs.all_labels
    columns["scored"][-1] = False
    return TrainSequence(row, reasons_L)


def _temperature(planned: PlannedRow, rules: BatchRules) -> float:
    """The temperature of its part. Raises DataError if the run has no such part."""
    if (found := rules.temperatures.get(planned.part)) is None:
        raise DataError(
            f"episode {planned.row.episode} is of part {planned.part!r}, and --env-mix has "
            f"{', '.join(rules.temperatures)}: its temperature is not known; play it again, or "
            "give the mixture that played it"
        )
    return found


def _played(row: Row, trajectory: Trajectory, rules: BatchRules) -> npt.NDArray[np.uint8]:
    """Fill in the columns of sampled tokens; returns why each is excluded, under its label."""
    cfg, sampled_L = rules.algorithm.cfg, trajectory.sampled_L
    versions_L = np.where(sampled_L, trajectory.versions_L, -1).astype(np.int32)
    ages_L = token_ages(rules.lineage, versions_L, rules.number)
    off_policy_L = (
        off_policy_turns(trajectory.versions_L, trajectory.turns_L, sampled_L)
        if cfg.masks_off_policy_turns
        else None
    )
    reasons_L = excluded_reasons(ages_L, sampled_L, off_policy_L, cfg.staleness_bound)
    if (by_env_L := trajectory.optional.get(EXCLUDED)) is not None:
        reasons_L[sampled_L & (by_env_L != 0)] |= np.uint8(Excluded.STEP)
    if cfg.keeps_cache:
        filled_L = trajectory.optional[CACHE_VERSIONS]
        cached_L = np.where(sampled_L & (filled_L >= 0), versions_L - filled_L, -1)
        row.columns["cached"] = shift(cached_L.astype(np.int32), -1)
    row.columns |= {
        "mask": shift(sampled_L & (reasons_L == 0), False),
        "sampled": shift(sampled_L, False),
        "mu": shift(trajectory.logprobs_L, 0.0),
        "ages": shift(ages_L.astype(np.int32), -1),
        "turns": shift(trajectory.turns_L, -1),
    }
    if (kept_L := rules.kept.get(row.trajectory.payload)) is not None:
        row.columns["mask"] &= kept_L
    return shift(reasons_L, 0)


def _narrow(row: Row, algorithm: Algorithm) -> None:
    """Leave out what the algorithm does; it cannot bring anything back."""
    expected = row.columns["mask"]
    expected.setflags(write=False)
    found = np.asarray(algorithm.mask(row))
    if found.shape != expected.shape or found.dtype != np.bool_:
        raise DataError(
            f"{algorithm.name}.mask returned {found.dtype} of shape {found.shape} for episode "
            f"{row.trajectory.episode}: return a bool for each of its {len(expected)} labels"
        )
    row.columns["mask"] = expected & found
    row.columns["mask"].setflags(write=False)


def check_masks(
    rows: Sequence[Row], masks: Sequence[npt.NDArray[np.bool_]], algorithm: Algorithm
) -> None:
    """Raise DataError for a row whose mask is not the one that it had."""
    for row, mask in zip(rows, masks, strict=True):
        if row.columns.get("mask") is not mask:
            raise DataError(
                f"{algorithm.name}.advantages replaced column mask of episode "
                f"{row.trajectory.episode}: leave labels out by the method `mask`"
            )


def check_columns(rows: Sequence[Row], rules: BatchRules) -> None:
    """Raise DataError unless every row has the same columns, each a number for every label, or
    what its declaration says."""
    algorithm = rules.algorithm
    declared = {column.name: column.shape for column in rules.columns}
    for row in rows:
        if row.columns.keys() != rows[0].columns.keys():
            odd = sorted(row.columns.keys() ^ rows[0].columns.keys())
            raise DataError(
                f"{algorithm.name}.advantages gave {odd} to some rows and not to others"
            )
        for name, column_L in row.columns.items():
            if column_L.shape != (*row.tokens_L.shape, *declared.get(name, ())):
                raise DataError(
                    f"{algorithm.name}.advantages: column {name} of episode "
                    f"{row.trajectory.episode} has shape {column_L.shape}; a number is wanted for "
                    f"each of its {len(row.tokens_L)} labels"
                )
            if column_L.dtype.kind not in "biuf":
                raise DataError(
                    f"{algorithm.name}.advantages: column {name} of episode "
                    f"{row.trajectory.episode} is of dtype {column_L.dtype}; numbers are wanted"
                )


def pack(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Rows of each micro-batch: at most `max_tokens` tokens; a longer one is alone."""
    bins = first_fit_decreasing([len(row.tokens_L) for row in rows], max_tokens)
    return [[rows[i] for i in items] for items in bins]


def micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Those rows, one after the other."""
    lengths = [len(row.tokens_L) for row in rows]
    columns = {
        name: torch.from_numpy(np.concatenate([row.columns[name] for row in rows]))
        for name in rows[0].columns
    }
    return MicroBatch(
        tokens_T=_int64([row.tokens_L for row in rows]),
        labels_T=_int64([shift(row.tokens_L, 0) for row in rows]),
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
    columns: Mapping[str, npt.NDArray[Any]], reasons_L: npt.NDArray[np.uint8]
) -> BatchCounts:
    trained_L, turns_L = columns["mask"], columns["turns"]
    masked_L = columns["sampled"] & ~trained_L
    return BatchCounts(
        num_trained=int(trained_L.sum()),
        num_masked=int(masked_L.sum()),
        num_stale=int(((reasons_L & Excluded.STALE) != 0).sum()),
        num_off_policy=int(((reasons_L & Excluded.OFF_POLICY_TURN) != 0).sum()),
        num_turns=len(np.unique(turns_L[columns["sampled"]])),
        num_masked_turns=len(np.unique(turns_L[masked_L])),
    )
