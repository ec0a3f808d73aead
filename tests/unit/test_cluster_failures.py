"""The rule that ends a run of nothing but failures."""

from agentrl.cluster.failures import FailureStreak


def test_failures_in_a_row_end_the_run_and_are_counted_by_kind() -> None:
    streak = FailureStreak(limit=4)
    assert streak.fates({"env_error": 3}) is None
    reason = streak.fates({"env_error": 3, "poison": 1, "trained": 9})
    assert reason == "4 groups failed since the last iteration (3 env_error, 1 poison in all)"


def test_an_iteration_begins_the_count_again() -> None:
    streak = FailureStreak(limit=4)
    streak.fates({"env_error": 3})
    streak.stepped()
    assert streak.fates({"env_error": 6}) is None
    assert streak.fates({"env_error": 7}) is not None


def test_filtered_and_cancelled_groups_are_no_failures() -> None:
    assert FailureStreak(limit=1).fates({"filtered": 100, "cancelled": 5, "trained": 3}) is None
