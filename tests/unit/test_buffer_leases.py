"""Leases: given and stepped in order, published and retired, and given again after a loss."""

import pytest

from agentrl.types import Fate, VersionRow
from agentrl.wire.messages import (
    Ack,
    GroupScore,
    Lease,
    LeaseRequest,
    NoMoreLeases,
    PushDone,
    Refused,
    Retire,
    ScoreGroup,
    Stepped,
)
from tests.unit.buffer_bench import bench


def test_a_lease_is_pushed_when_the_nth_group_is_ready_lowest_mint_first() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.offer(3)
    episodes = b.assigned("w0.1")
    for episode in reversed(episodes):
        b.finish("w0.1", episode.id)
    orders = {order.group: order for order in b.take("w0.1", ScoreGroup)}
    b.now = 3.0
    for group in ("00000003", "00000001"):
        b.say("w0.1", GroupScore(group, [0.0, 1.0]))
    (lease,) = b.take("learner.1", Lease)
    assert [group.mint for group in lease.header.groups] == [1, 3]
    assert lease.header.stats["wait_s"] == 3.0
    assert len(orders) == 3


def test_a_lease_that_exists_is_sent_again_as_it_was() -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    first = b.lease(1)
    assert b.lease(1) == first


def test_rows_of_tasks_are_in_a_lease_where_something_reads_them() -> None:
    for tells_rows in (False, True):
        b = bench(tells_rows=tells_rows)
        b.offer(4, row={"label": "4"}, part="sums")
        b.play_all("w0.1")
        told = [(group.row, group.part) for group in b.lease(1).groups]
        assert told == [({"label": "4"}, "sums") if tells_rows else ({}, "")] * 2


def test_a_request_that_comes_again_late_is_no_request() -> None:
    """A network may repeat a message when its learner has long gone on, even after the lease has
    been retired."""
    b = bench()
    b.offer(6)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    b.lease(2)
    b.say("learner.1", LeaseRequest(1))
    b.say("learner.1", Retire(1))
    b.say("learner.1", LeaseRequest(1))
    assert b.take("learner.1", Refused) == []
    assert b.take("learner.1", Lease) == []
    assert b.core.state.marks["requested_lease"] == 2


def test_the_last_short_batch_of_a_finite_source_is_leased_as_last() -> None:
    b = bench()
    b.offer(3, exhausted=True)
    b.play_all("w0.1")
    assert not b.lease(1).last
    last = b.lease(2)
    assert last.last
    assert len(last.groups) == 1
    b.say("learner.1", LeaseRequest(3))
    assert b.take("learner.1", NoMoreLeases) == [NoMoreLeases(2, "no task is left")]


def test_the_lease_that_num_rollout_names_is_the_last() -> None:
    b = bench(num_rollout=1)
    b.offer(100)
    b.play_all("w0.1")
    assert b.lease(1).last
    b.say("learner.1", LeaseRequest(2))
    assert b.take("learner.1", NoMoreLeases)[0].after == 1


def test_a_lease_number_that_skips_is_refused() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(3))
    assert "ask for lease 1" in b.take("learner.1", Refused)[0].reason


def test_a_step_out_of_order_is_refused() -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    b.lease(1)
    b.lease(2)
    b.step(2)
    assert "before lease 1" in b.take("learner.1", Refused)[0].reason


def test_a_step_and_its_metrics_are_told_once() -> None:
    b = bench()
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    for _ in range(2):
        b.say("learner.1", Stepped(1, False, 0.0, 0.0, 1.0, {"loss": 2.0}))
    (told,) = b.told("step")
    assert told["metrics"] == {"loss": 2.0}


def test_a_step_that_comes_again_when_its_lease_is_retired_is_acknowledged_and_no_news() -> None:
    b = bench()
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    b.publish(2, 1, 1)
    b.say("learner.1", Retire(1))
    before = list(b.rows)
    seq = b.say("learner.1", Stepped(1, False, 0.0, 0.0, 1.0))
    assert seq in [seq for ack in b.take("learner.1", Ack) for seq in ack.seqs]
    assert b.take("learner.1", Refused) == []
    assert (len(b.told("step")), b.rows) == (1, before)


def test_a_version_that_does_not_grow_is_refused_and_a_repeated_one_is_not() -> None:
    b = bench()
    b.publish(1, None, 0)
    assert b.take("learner.1", Refused) == []
    b.say("learner.1", PushDone(VersionRow(1, None, 3), 0))
    assert "does not grow" in b.take("learner.1", Refused)[0].reason


def test_old_tokens_of_a_lease_move_the_average_that_paces_minting() -> None:
    b = bench(async_buffer_size=2, max_staleness=1)
    b.offer(6)
    b.play_all("w0.1", versions=((1, 4),))
    for number in (1, 2):
        b.lease(number)
        b.step(number)
    assert b.core.state.pacer.row.old_share == 0.0
    b.publish(2, 1, 2)
    b.offer(2)
    b.play_all("w0.1", versions=((1, 3), (2, 1)))
    b.lease(3)
    assert b.core.state.pacer.row.old_share == pytest.approx(0.1 * 0.75)


def test_fates_become_final_when_a_checkpoint_covers_their_lease() -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    for number in (1, 2):
        b.lease(number)
        b.step(number, skipped=number == 2)
    assert b.core.state.fates == {}
    b.say("learner.1", Retire(2))
    assert b.core.state.fates == {Fate.TRAINED: 2, Fate.SKIPPED: 2}
    assert b.core.state.charged == 4
    b.publish(2, 1, 2)
    assert b.core.state.charged == 0
    b.say("learner.1", LeaseRequest(2))
    assert "ask for lease 3" in b.take("learner.1", Refused)[0].reason


def test_a_retirement_that_comes_again_or_late_changes_nothing() -> None:
    """A network may repeat it when later leases have long been retired."""
    b = bench()
    b.offer(6)
    b.play_all("w0.1")
    for number in (1, 2):
        b.lease(number)
        b.step(number)
    b.say("learner.1", Retire(2))
    fates, state = dict(b.core.state.fates), b.core.state
    for through in (1, 2):
        b.say("learner.1", Retire(through))
        assert (state.retired_through, state.fates) == (2, fates)
    assert b.take("learner.1", Refused) == []


def test_a_recovered_learner_gets_the_same_leases_and_their_groups_are_charged_again() -> None:
    b = bench()
    b.offer(4)
    b.play_all("w0.1")
    headers = {}
    for number in (1, 2):
        headers[number] = b.lease(number)
        b.step(number)
        b.publish(number + 1, number, number)
    b.say("learner.1", Retire(1))
    assert b.core.state.charged == 0
    learner = b.join("learner", "learner", "2")
    b.say(learner, LeaseRequest(2))
    assert b.take(learner, Lease)[0].header == headers[2]
    assert b.core.state.charged == 2
    b.say(learner, PushDone(VersionRow(4, 2, 1), 1))
    assert b.core.state.lineage.age(3, lease=2) == 1
    b.say(learner, Stepped(2, False, 0.0, 0.0, 1.0))
    b.say(learner, Retire(2))
    assert b.core.state.fates == {Fate.TRAINED: 4}


def test_a_lease_push_that_was_lost_is_made_again_when_the_learner_comes_back() -> None:
    b = bench()
    b.say("learner.1", LeaseRequest(1))
    b.offer(2)
    b.play_all("w0.1")
    (lost,) = b.take("learner.1", Lease)
    b.join("learner", "learner", "1")
    assert b.take("learner.1", Lease) == [lost]
