"""What the end or the silence of a process means."""

import msgspec
import pytest

from agentrl.cluster.host import ExitNotice
from agentrl.cluster.kinds import Consequence, ProcessKind
from agentrl.cluster.supervision import (
    CUT_OFF,
    HOOK_FAILED,
    MAX_RESTARTS,
    Supervision,
    counts_against_lease,
    exit_error,
    must_be_killed,
)
from agentrl.errors import DataError, HookError, InfrastructureError

KINDS: dict[str, ProcessKind] = {
    "learner": "learner", "worker": "worker", "engine": "engine", "buffer": "buffer",
    "router": "router",
}  # fmt: skip


def exit_of(
    name: str, code: int, expected: bool = False, kind: ProcessKind | None = None
) -> ExitNotice:
    is_own = name in KINDS or name.rpartition("-")[2].isdecimal()
    own = KINDS.get(name.partition("-")[0], "service") if is_own else "service"
    return ExitNotice(name, 7, code, expected, kind or own)


def test_the_learner_is_done_when_its_last_rank_is() -> None:
    watch = Supervision(num_learners=2)
    assert watch.ended(exit_of("learner-1", 0), 1) is Consequence.NOTHING
    assert watch.ended(exit_of("learner-0", 0), 1) is Consequence.LEARNER_DONE


def test_a_killed_worker_is_started_again_until_its_budget_is_spent() -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        assert watch.ended(exit_of("worker-0", -9)) is Consequence.RESTART
    assert watch.ended(exit_of("worker-0", -9)) is Consequence.FAIL
    assert watch.ended(exit_of("worker-1", -9)) is Consequence.RESTART


def test_one_that_has_others_beside_it_stays_down_when_its_budget_is_spent() -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        notice = exit_of("engine-0", 1)
        assert watch.ended(notice, can_stay_down=True) is Consequence.RESTART_ENGINE
    assert watch.ended(exit_of("engine-0", 1), can_stay_down=True) is Consequence.STAY_DOWN
    assert watch.ended(exit_of("engine-0", 1)) is Consequence.FAIL
    assert [watch.stepped(number) for number in (1, 1)] == [True, False]
    assert watch.ended(exit_of("engine-0", 1)) is Consequence.RESTART_ENGINE


@pytest.mark.parametrize("code", [2, 3, 4, 64, 65])
def test_what_a_restart_cannot_mend_ends_the_run_whoever_is_beside_it(code: int) -> None:
    notice = exit_of("worker-0", code)
    assert Supervision(1).ended(notice, can_stay_down=True) is Consequence.FAIL


def test_an_iteration_renews_the_budget() -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        watch.ended(exit_of("worker-0", -9))
    watch.stepped(1)
    assert watch.ended(exit_of("worker-0", -9)) is Consequence.RESTART


def test_an_iteration_that_is_made_again_renews_nothing() -> None:
    """The checkpoint is of 10, and iteration 15 kills the learner each time."""
    watch = Supervision(1)
    for life in range(1, MAX_RESTARTS + 1):
        for number in (11, 12, 13, 14):
            watch.stepped(number)
        assert watch.ended(exit_of("learner-0", -9), life) is Consequence.RESTART_LEARNER
    for number in (11, 12, 13, 14):
        watch.stepped(number)
    assert watch.ended(exit_of("learner-0", -9), MAX_RESTARTS + 1) is Consequence.FAIL
    watch.stepped(15)
    assert watch.ended(exit_of("learner-0", -9), 99) is Consequence.RESTART_LEARNER


def test_iterations_of_a_program_before_renew_nothing_when_they_are_made_again() -> None:
    watch = Supervision(1)
    watch.stepped(14)
    for life in range(1, MAX_RESTARTS + 1):
        assert watch.ended(exit_of("learner-0", -9), life) is Consequence.RESTART_LEARNER
        watch.stepped(14)
    assert watch.ended(exit_of("learner-0", -9), MAX_RESTARTS + 1) is Consequence.FAIL


@pytest.mark.parametrize("name", ["worker-0", "learner-0", "buffer"])
@pytest.mark.parametrize("code", [2, 3, 4, 65])
def test_what_a_restart_cannot_mend_ends_the_run(name: str, code: int) -> None:
    assert Supervision(1).ended(exit_of(name, code), 1) is Consequence.FAIL
    assert exit_error(exit_of(name, code)).exit_code == code


def test_the_error_of_any_rank_ends_the_run_however_late_it_is_heard_of() -> None:
    """What one rank found wrong, the others saw as a broken collective."""
    watch = Supervision(2)
    watch.ended(exit_of("learner-1", 70), 1)
    assert watch.ended(exit_of("learner-0", 4), 1) is Consequence.FAIL
    assert watch.ended(exit_of("learner-0", 4), None) is Consequence.FAIL


@pytest.mark.parametrize(
    ("name", "consequence"),
    [
        ("engine-0", Consequence.RESTART_ENGINE),
        ("router", Consequence.RESTART_ROUTER),
        ("retriever", Consequence.RESTART),
        ("worker-pool", Consequence.RESTART),
        ("engine-room", Consequence.RESTART),
    ],
)
@pytest.mark.parametrize("code", [2, 3, 4, 65])
def test_foreign_programs_mean_other_things_by_the_same_codes(
    name: str, consequence: Consequence, code: int
) -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        assert watch.ended(exit_of(name, code)) is consequence
    assert watch.ended(exit_of(name, code)) is Consequence.FAIL
    assert exit_error(exit_of(name, code)) is InfrastructureError


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
    assert Supervision(2).ended(exit_of(name, code), 1) is consequence


@pytest.mark.parametrize("name", ["worker-7", "learner-1", "engine-9"])
def test_a_service_is_one_by_its_kind_whatever_its_name_is(name: str) -> None:
    watch = Supervision(1)
    for _ in range(MAX_RESTARTS):
        notice = exit_of(name, 65, kind="service")
        assert watch.ended(notice, None) is Consequence.RESTART
        assert exit_error(notice) is InfrastructureError


def test_an_engine_that_ends_by_itself_is_missed_though_it_says_all_is_well() -> None:
    assert Supervision(1).ended(exit_of("engine-0", 0)) is Consequence.RESTART_ENGINE


def test_a_learner_of_many_ranks_may_die_as_often_as_any_process() -> None:
    """One broken collective ends all of its ranks, each by itself."""
    watch = Supervision(8)
    for life in range(1, MAX_RESTARTS + 1):
        said = [watch.ended(exit_of(f"learner-{rank}", 70), life) for rank in range(8)]
        assert said == [Consequence.RESTART_LEARNER] + [Consequence.NOTHING] * 7
    assert watch.ended(exit_of("learner-3", 70), MAX_RESTARTS + 1) is Consequence.FAIL


def test_a_rank_of_a_life_that_is_over_means_nothing() -> None:
    watch = Supervision(2)
    watch.ended(exit_of("learner-1", -9), 1)
    assert watch.ended(exit_of("learner-0", 0), 1) is Consequence.NOTHING
    assert watch.ended(exit_of("learner-0", -9), None) is Consequence.NOTHING


def test_the_ranks_of_a_learner_are_done_together_in_each_life_anew() -> None:
    watch = Supervision(2)
    watch.ended(exit_of("learner-0", 0), 1)
    assert watch.ended(exit_of("learner-1", -9), 1) is Consequence.RESTART_LEARNER
    for life in (2, 3):  # the third for the sake of an engine
        assert watch.ended(exit_of("learner-1", 0), life) is Consequence.NOTHING
        assert watch.ended(exit_of("learner-0", 0), life) is Consequence.LEARNER_DONE


def test_what_a_process_meant_by_its_exit_code_is_told() -> None:
    assert exit_error(exit_of("worker-0", -11)) is InfrastructureError
    assert exit_error(exit_of("worker-0", 65)) is DataError


@pytest.mark.parametrize(
    ("code", "counts"),
    [(70, True), (1, True), (0, False), (-11, True), (-6, True), (-7, True), (-4, True), (-8, True),
     (-9, False), (-15, False), (-2, False), (-1, False), (CUT_OFF, False),
     (65, True), (2, False), (3, False), (4, False), (HOOK_FAILED, False)],
)  # fmt: skip
def test_a_lease_is_suspected_of_what_its_rows_can_do_and_of_nothing_else(
    code: int, counts: bool
) -> None:
    """Bad data, a bug or a fault; not the configuration, the host, a health check, a function of
    the user's, or what somebody did to the learner."""
    assert counts_against_lease(exit_of("learner-0", code)) is counts


def test_a_learner_that_the_kernel_killed_for_want_of_memory_suspects_its_lease() -> None:
    notice = exit_of("learner-0", -9)
    assert counts_against_lease(msgspec.structs.replace(notice, out_of_memory=True))


@pytest.mark.parametrize("name", ["worker-0", "learner-0", "buffer"])
def test_a_function_of_the_user_s_ends_the_run_as_bad_data(name: str) -> None:
    notice = exit_of(name, HOOK_FAILED)
    assert Supervision(1).ended(notice, 1) is Consequence.FAIL
    assert (exit_error(notice), exit_error(notice).exit_code) == (HookError, 65)


def test_what_the_other_ranks_saw_of_an_error_that_ends_the_run_starts_nothing() -> None:
    watch = Supervision(2)
    assert watch.ended(exit_of("learner-0", 65), 1) is Consequence.FAIL
    assert watch.ended(exit_of("learner-1", 70), 1) is Consequence.NOTHING


def test_a_learner_that_another_process_left_alone_is_started_again() -> None:
    watch = Supervision(1)
    assert watch.ended(exit_of("learner-0", CUT_OFF), 1) is Consequence.RESTART_LEARNER


def test_an_exit_that_was_ordered_is_nothing() -> None:
    assert Supervision(1).ended(exit_of("engine-0", -15, expected=True)) is Consequence.NOTHING


@pytest.mark.parametrize(
    ("role", "state", "killed"),
    [
        ("worker", "lost", True),
        ("worker", "joined", False),
        ("worker", "back", False),
        ("learner", "lost", False),
        ("driver", "lost", False),
    ],
)
def test_a_worker_that_falls_silent_is_killed_and_nobody_else(
    role: str, state: str, killed: bool
) -> None:
    assert must_be_killed(role, state) is killed
