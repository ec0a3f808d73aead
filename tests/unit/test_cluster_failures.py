"""The rule that ends a run of nothing but failures."""

from agentrl.cluster.failures import FailureStreak


def test_failures_in_a_row_end_the_run_and_are_counted_by_kind() -> None:
    streak = FailureStreak()
    streak.fates({"env_error": 3})
    assert streak.words(at_least=4) == ""
    streak.fates({"env_error": 3, "poison": 1, "trained": 9})
    assert streak.words(at_least=4) == (
        "groups keep failing, so no iteration is made (3 env_error, 1 poison since the run began)"
    )


def test_an_iteration_begins_the_count_again() -> None:
    streak = FailureStreak()
    streak.fates({"env_error": 3})
    streak.stepped()
    assert streak.words() == ""
    streak.fates({"env_error": 6})
    assert streak.words(at_least=4) == ""
    streak.fates({"env_error": 7})
    assert "(4 env_error since the last one)" in streak.words(at_least=4)


def test_what_failed_before_a_run_was_continued_is_not_counted() -> None:
    streak = FailureStreak()
    streak.begin({"env_error": 9, "poison": 1})
    assert streak.words() == ""
    streak.fates({"env_error": 12, "poison": 1})
    assert streak.words(at_least=4) == ""
    assert "(3 env_error since it was continued)" in streak.words()


def test_prompts_that_never_fit_end_the_run_too() -> None:
    streak = FailureStreak()
    streak.fates({"filtered": 30}, too_long=3)
    assert streak.words(at_least=4) == ""
    streak.fates({"filtered": 31}, too_long=4)
    said = "(4 filtered for a first prompt that does not fit since the run began)"
    assert said in streak.words(at_least=4)
    streak.stepped()
    streak.fates({"filtered": 34}, too_long=7)
    assert streak.words(at_least=4) == ""
    streak.fates({"filtered": 35}, too_long=0)  # a buffer that began again
    assert streak.words(at_least=4) == ""


def test_groups_that_were_given_up_with_their_lease_are_no_failures() -> None:
    streak = FailureStreak()
    streak.fates({"poison": 1})
    streak.given_up(8)
    streak.fates({"poison": 9})
    assert streak.words(at_least=4) == ""
    streak.fates({"poison": 12})
    assert "(4 poison since" in streak.words(at_least=4)


def test_filtered_and_cancelled_groups_are_no_failures() -> None:
    streak = FailureStreak()
    streak.fates({"filtered": 100, "cancelled": 5, "trained": 3})
    assert streak.words() == ""
