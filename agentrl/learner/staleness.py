"""Age of tokens in iterations, and which sampled tokens stay out of the loss.

Pure rules on numpy columns. Invariant I3: no token older than the bound contributes to a gradient,
checked here at the iteration on the versions that the engines reported. Refuses a token whose
version was never published by this run, or that claims to come from the future.

Shape suffix: L = tokens of one trajectory.
"""

from collections.abc import Sequence
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader

__all__ = [
    "Excluded",
    "age_histogram",
    "excluded_reasons",
    "off_policy_turns",
    "share_above",
    "token_ages",
]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Excluded(IntFlag):
    """Why a sampled token is not trained; a token may have several reasons.

    STALE: older than `--max-staleness`. OFF_POLICY_TURN: sampled by an older version than the
    newest of its turn, under `--mask-offpolicy-in-partial-rollout` or `--no-partial-rollout`.
    STEP: its Env said so (`Step.excluded`).
    """

    STALE = 1
    OFF_POLICY_TURN = 2
    STEP = 4


def token_ages(lineage: Lineage, versions_L: npt.NDArray[np.int32], number: int) -> IntArray:
    """Age of each token in lease `number`; -1 where `versions_L` is -1 (not sampled). Raises as
    `Lineage.checked_age`."""
    versions, inverse_L = np.unique(versions_L, return_inverse=True)
    by_version = [lineage.checked_age(int(v), number) if v >= 0 else -1 for v in versions]
    return np.asarray(by_version, dtype=np.int64)[inverse_L]


def off_policy_turns(
    versions_L: npt.NDArray[np.int32], turns_L: npt.NDArray[np.int16], sampled_L: BoolArray
) -> BoolArray:
    """Sampled tokens whose version is older than the newest version of their own turn."""
    result_L = np.zeros(len(versions_L), dtype=np.bool_)
    for turn in np.unique(turns_L[sampled_L]):
        here_L = sampled_L & (turns_L == turn)
        result_L |= here_L & (versions_L < versions_L[here_L].max())
    return result_L


def cache_ages(
    versions_L: npt.NDArray[np.int32],
    turns_L: npt.NDArray[np.int16],
    sampled_L: BoolArray,
    shared: int,
) -> npt.NDArray[np.int32]:
    """By how many versions the cache that a sampled token read may be older than the weights that
    sampled it, where caches outlive pushes; -1 where a token was not sampled. `shared`: versions in
    a row whose turns share a part of the cache."""
    result_L = np.full(len(versions_L), -1, dtype=np.int32)
    for turn in np.unique(turns_L[sampled_L]):
        here_L = sampled_L & (turns_L == turn)
        first = versions_L[here_L].min()
        result_L[here_L] = versions_L[here_L] - (first - first % shared)
    return result_L


def excluded_reasons(
    ages_L: IntArray, sampled_L: BoolArray, off_policy_L: BoolArray | None, bound: int
) -> npt.NDArray[np.uint8]:
    """`Excluded` reasons of each token as bits; 0 where a sampled token is trained, and 0 where a
    token was not sampled. `off_policy_L`: None when off-policy turns are trained."""
    reasons_L = np.where(sampled_L & (ages_L > bound), int(Excluded.STALE), 0)
    if off_policy_L is not None:
        reasons_L |= np.where(sampled_L & off_policy_L, int(Excluded.OFF_POLICY_TURN), 0)
    return reasons_L.astype(np.uint8)


def age_histogram(header: LeaseHeader, lineage: Lineage) -> list[int]:
    """Sampled tokens of the whole lease by age, before any masking: `[num_age_0, num_age_1, ...]`.

    Taken from the header alone, so that every rank finds an unknown version together.
    """
    counts: dict[int, int] = {}
    for group in header.groups:
        for row in group.trajectories:
            for version, num_tokens in row.meta.versions:
                age = lineage.checked_age(version, header.number)
                counts[age] = counts.get(age, 0) + num_tokens
    return [counts.get(age, 0) for age in range(max(counts, default=-1) + 1)]


def share_above(ages: Sequence[int], bound: int) -> float:
    """Share of tokens older than `bound` in a histogram by age."""
    return sum(ages[bound + 1 :]) / sum(ages) if sum(ages) else 0.0
