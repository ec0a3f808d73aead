"""A drain: what it cancels, what it still trains, and what it keeps for a later program."""

from agentrl.buffer.events import FromPeer, Notify, Persist
from agentrl.types import Fate
from agentrl.wire.messages import Cancel, Drain, Lease, LeaseRequest, NoMoreLeases, Retire
from tests.unit.buffer_bench import bench


def test_drain_cancels_what_is_not_leased_and_keeps_what_is() -> None:
    b = bench()
    b.offer(2)
    b.play_all("w0.1")
    b.offer(2)
    b.lease(1)
    playing = [episode.id for episode in b.assigned("w0.1")]
    b.say("driver.1", Drain("asked to stop"))
    assert b.take("w0.1", Cancel) == [Cancel(sorted(playing))]
    assert b.core.state.fates == {Fate.CANCELLED: 2}
    b.step(1)
    b.say("learner.1", Retire(1))
    assert b.core.state.fates == {Fate.CANCELLED: 2, Fate.TRAINED: 2}
    b.say("learner.1", LeaseRequest(2))
    assert b.take("learner.1", NoMoreLeases) == [NoMoreLeases(1, "asked to stop")]


def test_a_drain_is_closed_when_its_fates_are_written() -> None:
    b = bench()
    b.offer(100)
    b.play_all("w0.1")
    b.lease(1)
    effects = b.core.handle(FromPeer("driver.1", b.epochs["driver.1"], 999, Drain("enough")), 0.0)
    kinds = [e.event.kind for e in effects if isinstance(e, Notify)]
    assert kinds == ["fates", "drained"]
    (told,) = (e.event.data for e in effects if isinstance(e, Notify) and e.event.kind == "drained")
    assert told == {"counts": {"cancelled": 2}, "open": 2}
    written = [e.row for e in effects if isinstance(e, Persist)]
    assert sum(getattr(row, "fate", None) is Fate.CANCELLED for row in written) == 2


def test_a_drain_without_a_group_is_closed_too() -> None:
    b = bench()
    b.say("driver.1", Drain("nothing to do"))
    assert b.told("drained") == [{"counts": {}, "open": 0}]


def test_an_interrupted_run_keeps_its_groups_for_the_program_that_continues_it() -> None:
    b = bench()
    b.offer(3)
    b.say("learner.1", LeaseRequest(1))
    held = {assignment.id for assignment in b.assigned("w0.1")}
    b.say("driver.1", Drain("interrupted", resumable=True))
    cancelled = {id for message in b.take("w0.1", Cancel) for id in message.episodes}
    assert held
    assert cancelled == held
    assert b.told("drained")
    assert b.told("fates") == []
    assert b.take("learner.1", Lease) == []
    assert b.take("learner.1", NoMoreLeases) == []


def test_an_interrupted_run_gives_no_short_lease_in_haste() -> None:
    b = bench()
    b.offer(1)
    b.play_all("w0.1")
    b.say("learner.1", LeaseRequest(1))
    b.say("driver.1", Drain("interrupted", resumable=True))
    assert b.take("learner.1", Lease) == []
