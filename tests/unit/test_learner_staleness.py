"""Ages and exclusions: the rules behind invariant I3."""

import numpy as np
import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.staleness import (
    Excluded,
    excluded_reasons,
    off_policy_turns,
    token_ages,
)
from agentrl.lineage import Lineage
from agentrl.types import VersionRow


def lineage_of(*iterations: int) -> Lineage:
    """Version i holds `iterations[i]` iterations."""
    lineage = Lineage()
    for version, iteration in enumerate(iterations):
        lineage.add(VersionRow(version, version - 1 if version else None, iteration))
    return lineage


def test_age_counts_iterations_and_not_versions() -> None:
    lineage = lineage_of(0, 2, 4)
    assert [lineage.age(version, 5) for version in (0, 1, 2)] == [4, 2, 0]
    assert lineage.age(2, 6) == 1


def test_ages_of_a_column_leave_unsampled_tokens_at_minus_one() -> None:
    ages = token_ages(lineage_of(0, 1, 2), np.array([-1, 2, 0, -1, 1], dtype=np.int32), 3)
    assert ages.tolist() == [-1, 0, 2, -1, 1]


def test_a_version_that_was_never_published_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="unknown version 7 in lease 3"):
        lineage_of(0, 1, 2).checked_age(7, 3)


def test_a_version_with_more_iterations_than_the_weights_is_refused() -> None:
    with pytest.raises(DataError, match="out of order"):
        lineage_of(0, 1, 2).checked_age(2, 2)


def test_a_token_of_weights_that_a_recovery_undid_is_as_old_as_what_was_undone() -> None:
    lineage = lineage_of(0, 1, 2, 3)
    lineage.add(VersionRow(4, 1, 1))
    assert [lineage.checked_age(version, 2) for version in (1, 2, 3, 4)] == [0, 2, 2, 0]


def test_exactly_the_sampled_tokens_beyond_the_bound_are_stale() -> None:
    ages = np.array([-1, 0, 1, 2, 3, 3], dtype=np.int64)
    sampled = np.array([0, 1, 1, 1, 1, 0], dtype=bool)
    assert excluded_reasons(ages, sampled, None, 2).tolist() == [0, 0, 0, 0, Excluded.STALE, 0]
    assert excluded_reasons(ages, sampled, None, 0).tolist()[2:5] == [Excluded.STALE] * 3


def test_a_turn_sampled_by_two_versions_keeps_only_the_newest_tokens() -> None:
    versions = np.array([-1, 3, 3, 4, -1, 3, 3], dtype=np.int32)
    turns = np.array([-1, 0, 0, 0, 0, 1, 1], dtype=np.int16)
    off_policy = off_policy_turns(versions, turns, versions >= 0)
    assert off_policy.tolist() == [False, True, True, False, False, False, False]


def test_reasons_add_up() -> None:
    sampled = np.array([True, True])
    reasons = excluded_reasons(np.array([5, 0]), sampled, np.array([True, False]), 1)
    assert reasons.tolist() == [Excluded.STALE | Excluded.OFF_POLICY_TURN, 0]


@pytest.mark.parametrize(
    ("partial", "mask", "newest_only"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
def test_a_turn_of_several_versions_is_trained_whole_only_by_plain_partial_rollout(
    partial: bool, mask: bool, newest_only: bool
) -> None:
    config = RunConfig(partial_rollout=partial, mask_offpolicy_in_partial_rollout=mask)
    assert config.masks_off_policy_turns is newest_only
