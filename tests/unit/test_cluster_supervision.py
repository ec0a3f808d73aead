"""What the end or the silence of a process means."""

import pytest

from agentrl.cluster.host import ExitNotice
from agentrl.cluster.supervision import MAX_RESTARTS, Consequence, Supervision, exit_error
from agentrl.errors import DataError, InfrastructureError


def exit_of(name: str, code: int, expected: bool = False) -> ExitNotice:
    return ExitNotice(name, 7, code, expected)


def test_the_learner_is_done_when_its_last_rank_is() -> None:
    watch = Supervision(num_learners=2)
    assert watch.ended(exit_of("learner-1", 0)) is Consequence.NOTHING
    assert watch.ended(exit_of("learner-0", 0)) is Consequence.LEARNER_DONE


def test_a_killed_worker_is_started_again_until_its_budget_is_spent() -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        assert watch.ended(exit_of("worker-0", -9)) is Consequence.RESTART
    assert watch.ended(exit_of("worker-0", -9)) is Consequence.FAIL
    assert watch.ended(exit_of("worker-1", -9)) is Consequence.RESTART


def test_an_iteration_renews_the_budget() -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        watch.ended(exit_of("worker-0", -9))
    watch.stepped()
    assert watch.ended(exit_of("worker-0", -9)) is Consequence.RESTART


@pytest.mark.parametrize("code", [2, 3, 4, 65])
def test_what_a_restart_cannot_mend_ends_the_run(code: int) -> None:
    assert Supervision(1).ended(exit_of("worker-0", code)) is Consequence.FAIL
    assert exit_error(code).exit_code == code


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("engine-0", Consequence.RESTART_ENGINE),
        ("router", Consequence.RESTART_ROUTER),
        ("learner-1", Consequence.RESTART_LEARNER),
        ("buffer", Consequence.RESTART),
        ("retriever", Consequence.RESTART),
    ],
)
@pytest.mark.parametrize("code", [-9, -11, 70])
def test_every_part_of_a_run_is_started_again(
    name: str, consequence: Consequence, code: int
) -> None:
    assert Supervision(2).ended(exit_of(name, code)) is consequence


def test_an_engine_that_ends_by_itself_is_missed_though_it_says_all_is_well() -> None:
    assert Supervision(1).ended(exit_of("engine-0", 0)) is Consequence.RESTART_ENGINE


def test_the_ranks_of_a_learner_share_a_budget_and_are_done_together() -> None:
    watch = Supervision(2)
    watch.ended(exit_of("learner-0", 0))
    for rank in (0, 1, 0, 1, 0):
        assert watch.ended(exit_of(f"learner-{rank}", -9)) is Consequence.RESTART_LEARNER
    assert watch.ended(exit_of("learner-1", -9)) is Consequence.FAIL
    assert watch.ended(exit_of("learner-1", 0)) is Consequence.NOTHING
    assert watch.ended(exit_of("learner-0", 0)) is Consequence.LEARNER_DONE


def test_what_a_process_meant_by_its_exit_code_is_told() -> None:
    assert exit_error(-11) is InfrastructureError
    assert exit_error(65) is DataError


def test_an_exit_that_was_ordered_is_nothing() -> None:
    assert Supervision(1).ended(exit_of("engine-0", -15, expected=True)) is Consequence.NOTHING


def test_a_worker_that_fell_silent_is_killed_once() -> None:
    watch = Supervision(1)
    watch.peer("worker-0", "joined")
    assert watch.peer("worker-0", "lost")
    assert not watch.peer("worker-0", "lost")


def test_a_worker_whose_end_is_known_is_not_killed_in_its_next_life() -> None:
    watch = Supervision(1)
    watch.peer("worker-0", "joined")
    watch.ended(exit_of("worker-0", -9))
    assert not watch.peer("worker-0", "lost")


def test_a_silent_learner_is_not_killed() -> None:
    watch = Supervision(1)
    watch.peer("learner-0", "joined")
    assert not watch.peer("learner-0", "lost")
