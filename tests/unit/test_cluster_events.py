"""What the driver knows of a run that is continued, or whose buffer died with events untold."""

import anyio
import pytest

from agentrl.cluster.events import RunState
from agentrl.wire.messages import Event, Welcome


def welcome(**facts: object) -> Welcome:
    return Welcome(1, 1.0, **facts)  # type: ignore[arg-type]


def published(version: int, iteration: int) -> Event:
    return Event("published", {"version": version, "parent": None, "iteration": iteration})


def test_a_continued_run_knows_its_leases_iterations_and_fates_but_no_version() -> None:
    state = RunState()
    state.continue_from(
        welcome(last_lease=7, stepped=6, fates={"trained": 12}, published_version=3)
    )
    assert (state.leases, state.steps) == (7, 6)
    assert state.version is None


def test_iterations_are_those_that_the_learners_weights_contain() -> None:
    state = RunState()
    state.continue_from(welcome(last_lease=15, stepped=14, published_version=15))
    state.apply(published(16, 10))
    assert (state.version, state.steps) == (16, 10)
    state.apply(Event("step", {"number": 11}))
    assert state.steps == 11


def test_a_first_push_whose_event_died_with_the_buffer_is_learnt_from_the_next() -> None:
    state = RunState()
    state.continue_from(welcome(published_version=4, stepped=2, last_lease=3))

    async def wait() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(state.wait, lambda s: s.version is not None)
            await anyio.lowlevel.checkpoint()
            state.reconcile(welcome(published_version=5, stepped=3, last_lease=4))

    anyio.run(wait)
    assert (state.version, state.steps, state.leases) == (5, 3, 4)


def test_the_version_of_a_program_before_is_no_news() -> None:
    state = RunState()
    state.continue_from(welcome(published_version=4))
    state.reconcile(welcome(published_version=4))
    assert state.version is None


def test_a_new_runs_first_version_is_news() -> None:
    state = RunState()
    state.continue_from(welcome())
    state.reconcile(welcome(published_version=0))
    assert state.version == 0


@pytest.mark.parametrize(("stepped", "missed"), [(5, 0), (8, 3), (2, 0)])
def test_iterations_that_nobody_told_of_are_counted(stepped: int, missed: int) -> None:
    state = RunState()
    state.apply(Event("step", {"number": 5}))
    assert state.reconcile(welcome(stepped=stepped, fates={"poison": 2})) == missed
    assert state.steps == 5 + missed
    assert ("2 poison" in state.failures.words()) is not bool(missed)


# ---- failures -----------------------------------------------------------------------------------


def test_failures_of_long_ago_do_not_end_a_run_that_is_continued() -> None:
    state = RunState()
    state.continue_from(welcome(fates={"env_error": 40}))
    state.apply(Event("fates", {"counts": {"env_error": 41, "trained": 900}}))
    assert state.failures.words(at_least=32) == ""
    state.apply(Event("fates", {"counts": {"env_error": 72}}))
    assert "32 env_error since it was continued" in state.failures.words(at_least=32)


def test_an_iteration_before_the_first_fate_forgives_nothing_that_is_new() -> None:
    state = RunState()
    state.continue_from(welcome(fates={"env_error": 40}))
    state.apply(Event("step", {"number": 1}))
    state.apply(Event("fates", {"counts": {"env_error": 43}}))
    assert state.failures.words(at_least=4) == ""
    state.apply(Event("fates", {"counts": {"env_error": 44}}))
    assert state.failures.words(at_least=4)
