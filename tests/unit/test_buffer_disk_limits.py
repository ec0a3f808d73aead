"""Room on the disk: how trained trajectories are kept and let go, and what a full store stops."""

from typing import Any

from agentrl.buffer.events import Tick
from agentrl.types import Outcome
from agentrl.wire.messages import LeaseRequest, Retire, TaskCredit
from tests.unit.buffer_bench import Bench, bench


def full_after_one_lease(**settings: Any) -> Bench:
    """A run whose first lease is trained and published, and whose store is full."""
    b = bench(buffer_disk_limit=360, async_buffer_size=0, max_staleness=0, **settings)
    b.offer(100)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    return b


def train_one(b: Bench, number: int) -> None:
    """One lease of 360 bytes, in a segment of its own, from its tasks to its retirement."""
    b.segment = number
    b.offer(2)
    b.play_all("w0.1")
    b.lease(number)
    b.step(number)
    b.publish(number + 1, number, number)
    b.say("learner.1", Retire(number))


def test_trained_trajectories_are_kept_up_to_the_bound_and_the_oldest_go_first() -> None:
    b = bench(keep_trajectories=720, async_buffer_size=0, max_staleness=0)
    gone = []
    for number in (1, 2, 3, 4):
        train_one(b, number)
        gone.append(list(b.dropped))
    assert gone == [[], [], [1], [1, 2]]
    assert sorted(b.core.state.segments) == [3, 4]


def test_kept_trajectories_never_fill_the_store() -> None:
    b = bench(buffer_disk_limit=360, async_buffer_size=0, max_staleness=0)
    train_one(b, 1)
    train_one(b, 2)
    assert b.dropped == []
    assert b.core.state.store_bytes == 0
    assert [data["full"] for data in b.told("store")] == [True, False, True, False]


def test_a_full_disk_stops_minting_until_segments_are_dropped() -> None:
    b = bench(buffer_disk_limit=100, keep_trajectories=0, async_buffer_size=0, max_staleness=0)
    b.offer(2)
    b.play_all("w0.1")
    assert b.take("driver.1", TaskCredit) == []
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    assert b.take("driver.1", TaskCredit) == []
    b.say("learner.1", Retire(1))
    assert b.dropped == [1]
    assert [data["full"] for data in b.told("store")] == [True, False]
    assert len(b.take("driver.1", TaskCredit)) == 1


def test_a_learner_that_waits_on_a_full_store_for_ever_is_told_once_with_flag_and_bytes() -> None:
    b = full_after_one_lease()
    assert b.told("stuck") == []
    b.say("learner.1", LeaseRequest(2))
    b.do(Tick())
    (told,) = b.told("stuck")
    assert "--buffer-disk-limit is 360" in told["reason"]
    assert "holds 360 bytes" in told["reason"]
    assert (told["store_bytes"], told["limit_bytes"]) == (360, 360)


def test_a_full_store_is_no_dead_end_when_no_further_lease_will_come() -> None:
    b = full_after_one_lease(num_rollout=1)
    b.say("learner.1", LeaseRequest(2))
    assert b.told("stuck") == []


def test_a_full_store_is_no_dead_end_while_a_group_is_played() -> None:
    b = bench(buffer_disk_limit=180)
    b.offer(2)
    first, second, *others = b.assigned("w0.1")
    for episode in (first, second):
        b.finish("w0.1", episode.id)
    b.judge_all("w0.1")
    b.say("learner.1", LeaseRequest(1))
    assert b.core.state.store_bytes == 180
    assert b.told("stuck") == []
    for episode in others:
        b.finish("w0.1", episode.id, outcome=Outcome.POISON)
    assert len(b.told("stuck")) == 1


def test_a_full_store_is_no_dead_end_while_a_lease_is_trained() -> None:
    b = bench(buffer_disk_limit=360)
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    b.say("learner.1", LeaseRequest(2))
    assert b.told("stuck") == []
    b.step(1)
    assert len(b.told("stuck")) == 1
