"""Minting: the credit that a driver gets, what of its offers is new, and the bounds on both."""

import pytest

from agentrl.types import Task
from agentrl.wire.messages import TaskCredit, Tasks
from tests.unit.buffer_bench import bench


def test_a_driver_gets_credit_for_exactly_what_may_be_minted() -> None:
    b = bench()
    assert b.take("driver.1", TaskCredit) == [TaskCredit(4, 0)]
    b.say("driver.1", Tasks([Task("0", {}), Task("1", {})], 2))
    assert b.core.state.minted == 2
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 2)]


def test_an_offer_that_is_known_already_is_minted_once() -> None:
    b = bench()
    tasks = Tasks([Task("0", {}), Task("1", {})], 2)
    b.say("driver.1", tasks)
    b.say("driver.1", tasks)
    assert b.core.state.minted == 2


def test_an_offer_that_overlaps_what_is_known_is_taken_from_where_it_is_new() -> None:
    b = bench()
    b.say("driver.1", Tasks([Task("0", {}), Task("1", {})], 2))
    b.say("driver.1", Tasks([Task("1", {}), Task("2", {})], 3))
    assert [group.task.id for group in b.core.state.groups.values()] == ["0", "1", "2"]


def test_an_offer_behind_a_gap_is_ignored_and_asked_for_again() -> None:
    b = bench()
    b.take("driver.1", TaskCredit)
    b.say("driver.1", Tasks([Task("7", {})], 8))
    assert b.core.state.minted == 0
    assert b.take("driver.1", TaskCredit) == [TaskCredit(4, 0)]


def test_minting_stops_at_the_hard_bound_and_goes_on_when_weights_are_published() -> None:
    b = bench()
    b.offer(100)
    assert b.core.state.charged == 4
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    assert b.take("driver.1", TaskCredit) == []
    b.publish(2, 1, 1)
    assert b.core.state.charged == 2
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 4)]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_so_many_iterations_are_in_the_making_beside_the_one_that_is_next(ahead: int) -> None:
    """Pacing begins with two, and goes up to what the flag says (`test_buffer_admission.py`)."""
    b = bench(rollout_batch_size=8, async_buffer_size=ahead, max_staleness=ahead)
    b.supply()
    assert b.core.state.charged == 8 * (ahead + 1)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    b.supply()
    assert b.core.state.charged == 8 * (ahead + 1)


def test_only_what_num_rollout_still_needs_is_minted() -> None:
    b = bench(num_rollout=1)
    assert b.take("driver.1", TaskCredit) == [TaskCredit(2, 0)]
    b = bench(num_rollout=1)
    b.supply()
    b.play_all("w0.1")
    b.supply()
    assert len(b.core.state.groups) == 2
