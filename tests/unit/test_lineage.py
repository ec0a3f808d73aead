"""Lineages: the age of a version, also after a recovery, and the rows that are refused."""

from agentrl.lineage import Lineage
from agentrl.types import VersionRow


def test_age_counts_the_iterations_between_sampling_and_training() -> None:
    lineage = Lineage([VersionRow(1, None, 0), VersionRow(2, 1, 2)])
    assert [lineage.age(version, 4) for version in (1, 2)] == [3, 1]
    assert lineage.age(2, 1) == 0
    assert lineage.old_share([(1, 1), (2, 3)], 4, 1) == 0.25


def test_versions_that_a_recovery_undid_are_at_least_as_old_as_what_was_lost() -> None:
    rows = [VersionRow(v, v - 1 or None, v - 1) for v in range(1, 6)]
    lineage = Lineage([*rows, VersionRow(6, 3, 2)])
    assert [lineage.age(version, 3) for version in (3, 4, 5, 6)] == [0, 2, 2, 0]
    assert lineage.age(4, 10) == 6


def test_every_branch_is_as_old_as_the_largest_loss_since_it_was_left() -> None:
    lineage = Lineage([VersionRow(0, None, 0), VersionRow(1, 0, 4), VersionRow(2, 1, 6)])
    lineage.add(VersionRow(3, 1, 4))  # version 2 was lost in its push
    lineage.add(VersionRow(4, 1, 4))  # and so was version 3, which held the same weights as this
    assert [lineage.checked_age(version, 5) for version in (1, 2, 3, 4)] == [0, 2, 0, 0]
    lineage.add(VersionRow(5, 0, 0))  # the checkpoint of version 1 cannot be read any more
    assert [lineage.checked_age(version, 1) for version in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 0]


def again(*forks: VersionRow, recipe: int = 7) -> Lineage:
    """Versions 0 to 6, each an iteration after the one before, by the same recipe; and forks."""
    rows = [VersionRow(v, v - 1 if v else None, v, recipe) for v in range(7)]
    return Lineage([*rows, *forks])


def test_what_is_trained_once_more_by_the_same_recipe_leaves_every_age_as_it_was() -> None:
    lineage = again(VersionRow(7, 0, 0, 7))
    assert [lineage.checked_age(version, 7) for version in (1, 4, 6, 7)] == [5, 2, 0, 6]
    for version in range(8, 14):
        lineage.add(VersionRow(version, version - 1, version - 7, 7))
    assert [lineage.checked_age(version, 7) for version in (4, 6, 13)] == [2, 0, 0]
    lineage.add(VersionRow(14, 9, 2, 7))  # by a checkpoint that the second life has written
    assert [lineage.checked_age(version, 7) for version in (4, 6, 13, 14)] == [2, 0, 0, 4]


def test_another_recipe_undoes_what_it_trains_anew_and_no_more() -> None:
    lineage = again(VersionRow(7, 2, 2, 8))
    assert [lineage.age(version, 7) for version in (1, 2, 3, 6)] == [5, 4, 4, 4]
    lineage.add(VersionRow(8, 7, 3, 8))
    lineage.add(VersionRow(9, 2, 2, 8))  # once more, by the second recipe
    assert [lineage.age(version, 4) for version in (3, 6, 8)] == [4, 4, 0]
    lineage.add(VersionRow(10, 2, 2, 7))  # back to the first: what was undone stays so
    assert [lineage.age(version, 4) for version in (3, 6, 8)] == [4, 4, 1]


def test_what_is_made_of_two_recipes_is_not_made_once_more_by_the_second() -> None:
    lineage = again(VersionRow(7, 6, 6, 8), VersionRow(8, 7, 7, 8), VersionRow(9, 2, 2, 8))
    assert [lineage.age(version, 3) for version in (2, 3, 8)] == [0, 5, 5]


def test_of_an_unknown_recipe_nothing_is_taken_for_the_same() -> None:
    lineage = again(VersionRow(7, 0, 0, 0), recipe=0)
    assert lineage.age(6, 7) == 6


def test_an_unknown_parent_and_a_number_used_before_are_refused() -> None:
    lineage = Lineage([VersionRow(3, None, 0)])
    assert "does not grow" in str(lineage.refusal(VersionRow(3, None, 1)))
    assert "unknown parent 2" in str(lineage.refusal(VersionRow(4, 2, 1)))
