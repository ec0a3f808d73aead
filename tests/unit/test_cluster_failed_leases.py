"""Leases in which the learner ended, in the words of the console and of the last line."""

from typing import Any

from agentrl.cluster.events import RunState
from agentrl.cluster.failures import FailedLeases, given_up
from agentrl.wire.messages import Event


def failed(number: int, deaths: int, groups: list[str], **more: Any) -> dict[str, Any]:
    tasks = [f"t{group}" for group in groups]
    return {"number": number, "deaths": deaths, "groups": groups, "tasks": tasks} | more


def test_each_lease_is_named_with_how_often_and_a_lease_made_again_is_another() -> None:
    leases = FailedLeases()
    assert leases.words() == ""
    for deaths in (1, 2, 3):
        leases.take(failed(9, deaths, ["7", "8"]))
    leases.take(failed(9, 1, ["9"]))
    assert leases.words() == (
        "the learner ended 3 times in lease 9 (groups 7 of task t7, 8 of task t8) and the learner"
        " ended once in lease 9 (groups 9 of task t9)"
    )


def test_a_lease_that_was_stepped_is_not_spoken_of_any_more() -> None:
    leases = FailedLeases()
    leases.take(failed(3, 1, ["5"]))
    leases.take(failed(4, 2, ["6"]))
    leases.stepped(3)
    assert leases.words() == "the learner ended twice in lease 4 (groups 6 of task t6)"


def test_a_learner_that_was_killed_again_and_again_was_in_a_lease_too() -> None:
    """A kill counts for nothing against the lease, and a reader wants its name all the same."""
    state = RunState()
    left = {"number": 1, "groups": ["5"], "tasks": ["t5"]}
    state.apply(Event("lease_left", left))
    assert state.failed_leases.words() == (
        "the learner ended in lease 1 (groups 5 of task t5), which may not be why"
    )
    state.apply(Event("lease_failed", failed(1, 2, ["5"], given_up=False)))
    state.apply(Event("lease_left", left))
    assert state.failed_leases.words() == (
        "the learner ended twice in lease 1 (groups 5 of task t5)"
    )
    state.apply(Event("step", {"number": 1}))
    assert state.failed_leases.words() == ""


def test_of_many_groups_few_are_named_and_a_task_moves_no_cursor() -> None:
    many = failed(2, 3, [str(number) for number in range(11)])
    assert given_up(many).endswith("7 of task t7 and 3 more")
    said = given_up(failed(2, 3, ["1"], tasks=["\x1b[2J" + "x" * 500]))
    assert said.isprintable()
    assert len(said) < 300
