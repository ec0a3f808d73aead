"""Pushes wait for pinned evaluations, and for nothing that does not end."""

from agentrl.buffer import BufferCore
from agentrl.buffer.events import Tick
from agentrl.types import Outcome, SamplingParams, Task
from agentrl.wire.messages import (
    Capacity,
    Drain,
    Evaluate,
    Heartbeat,
    Lease,
    LeaseRequest,
    MayPush,
    PeerLost,
    PushGranted,
    TaskCredit,
    Tasks,
)
from tests.unit.buffer_bench import Bench, bench


def evaluate(b: Bench, size: int, *, pinned: bool = True, id: str = "e1") -> None:
    tasks = [Task(str(i), {}) for i in range(size)]
    order = Evaluate("heldout", id, tasks, 1, SamplingParams(), beside=True, pinned=pinned)
    b.say("driver.1", order)


def grants(b: Bench, version: int = 2) -> int:
    """How often `version` was granted since the last look."""
    return b.take("learner.1", PushGranted).count(PushGranted(version))


def pass_time(b: Bench, seconds: float, *peers: str) -> None:
    """Time passes in seconds, of which only `peers` let hear something."""
    for _ in range(int(seconds)):
        b.now += 1.0
        for peer in peers:
            b.say(peer, Heartbeat())
        b.do(Tick())


def test_a_push_waits_until_the_pinned_evaluation_has_ended() -> None:
    b = bench()
    evaluate(b, 2)
    first, second = b.assigned("w0.1")
    b.say("learner.1", MayPush(2))
    b.finish("w0.1", first.id)
    assert grants(b) == 0
    b.finish("w0.1", second.id)
    assert grants(b) == 1
    (told,) = b.told("evaluation")
    assert (told["version_min"], told["version_max"], told["n"]) == (1, 1, 2)


def test_a_push_waits_once_for_all_sets_that_were_asked_for_together() -> None:
    b = bench()
    evaluate(b, 1, id="heldout@4")
    evaluate(b, 1, id="hard@4")
    b.say("learner.1", MayPush(2))
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id)
    assert grants(b) == 0
    b.finish("w0.1", second.id)
    assert grants(b) == 1


def test_a_push_waits_for_no_evaluation_that_is_not_pinned() -> None:
    b = bench()
    b.say("learner.1", MayPush(2))
    assert grants(b) == 1, "nothing runs"
    evaluate(b, 2, pinned=False)
    b.say("learner.1", MayPush(3))
    assert grants(b, 3) == 1


def test_an_evaluation_that_fails_lets_the_push_go() -> None:
    b = bench()
    evaluate(b, 1)
    b.say("learner.1", MayPush(2))
    while episodes := b.assigned("w0.1"):
        assert grants(b) == 0
        b.finish("w0.1", episodes[0].id, outcome=Outcome.ENV_ERROR)
    assert b.told("evaluation")[0]["failed"] == 1
    assert grants(b) == 1


def test_an_evaluation_that_takes_down_its_workers_lets_the_push_go() -> None:
    b = bench()
    evaluate(b, 1)
    b.say("learner.1", MayPush(2))
    for incarnation in ("2", "3", "4"):
        assert grants(b) == 0
        b.say("driver.1", PeerLost("w0"))
        b.say(b.join("w0", "worker", incarnation), Capacity(4))
    assert b.told("evaluation")[0]["failed"] == 1
    assert grants(b) == 1


def test_a_drain_lets_the_push_go() -> None:
    b = bench()
    evaluate(b, 2)
    b.say("learner.1", MayPush(2))
    b.say("driver.1", Drain("interrupted", resumable=True))
    assert grants(b) == 1
    evaluate(b, 1, id="e2")
    b.say("learner.1", MayPush(3))
    assert grants(b, 3) == 1, "nothing is played any more"


def test_without_a_driver_nobody_wants_the_score_and_the_push_goes() -> None:
    b = bench(liveness_s=10.0)
    evaluate(b, 1)
    b.say("learner.1", MayPush(2))
    pass_time(b, 9, "w0.1", "learner.1")
    assert grants(b) == 0
    pass_time(b, 3, "w0.1", "learner.1")
    assert grants(b) == 1


def test_a_driver_that_is_back_has_its_evaluation_pinned_again() -> None:
    b = bench(liveness_s=10.0)
    evaluate(b, 1)
    pass_time(b, 12, "w0.1", "learner.1")
    b.say("driver.1", Heartbeat())
    b.say("learner.1", MayPush(2))
    assert grants(b) == 0


def test_an_evaluation_of_which_nothing_ends_holds_a_push_no_longer_than_its_patience() -> None:
    b = bench(hold_patience_s=100.0)
    everybody = ("w0.1", "learner.1", "driver.1")
    evaluate(b, 2)
    first, _ = b.assigned("w0.1")
    pass_time(b, 300, *everybody)
    b.say("learner.1", MayPush(2))
    pass_time(b, 90, *everybody)
    b.finish("w0.1", first.id)
    pass_time(b, 90, *everybody)
    assert grants(b) == 0, "something moved meanwhile"
    pass_time(b, 20, *everybody)
    assert grants(b) == 1


def test_a_restarted_buffer_holds_nothing_until_the_driver_asks_again() -> None:
    b = bench()
    evaluate(b, 1)
    b.say("learner.1", MayPush(2))
    b.core = BufferCore(b.core.settings, now=b.now)
    b.join("learner", "learner")
    b.say("learner.1", MayPush(2))
    assert grants(b) == 1
    b.join("driver", "driver")
    b.join("w0", "worker")
    evaluate(b, 1)
    b.say("learner.1", MayPush(2))
    assert grants(b) == 0


def test_what_a_dead_learner_asked_for_is_not_granted_to_the_next() -> None:
    b = bench()
    evaluate(b, 1)
    (episode,) = b.assigned("w0.1")
    b.say("learner.1", MayPush(2))
    b.join("learner", "learner", "2")
    b.finish("w0.1", episode.id)
    assert grants(b) == 0
    assert b.take("learner.2", PushGranted) == []
    b.say("learner.2", MayPush(3))
    assert b.take("learner.2", PushGranted) == [PushGranted(3)]


def test_with_nothing_ahead_an_evaluation_ends_while_no_group_can_be_minted() -> None:
    """B = 0: the next batch needs the push, the push waits for the evaluation, and that needs
    neither of them."""
    b = bench(async_buffer_size=0, max_staleness=0)
    b.offer(2)
    b.play_all("w0.1")
    b.lease(1)
    b.step(1)
    assert b.take("driver.1", TaskCredit) == [], "nothing more may be minted before the push"
    evaluate(b, 3)
    b.say("learner.1", MayPush(2))
    episodes = b.assigned("w0.1")
    assert len(episodes) == 3
    for episode in episodes:
        assert grants(b) == 0
        b.finish("w0.1", episode.id)
    assert grants(b) == 1
    b.publish(2, 1, 1)
    b.say("driver.1", Tasks([Task("3", {}), Task("4", {})], 4))
    b.say("learner.1", LeaseRequest(2))
    b.play_all("w0.1", versions=((2, 4),))
    assert [lease.header.number for lease in b.take("learner.1", Lease)] == [2]


def test_what_older_weights_sampled_is_played_again_when_a_push_could_not_wait() -> None:
    b = bench()
    evaluate(b, 4)
    before, across, late, after = b.assigned("w0.1")
    b.finish("w0.1", before.id, versions=((1, 4),), reward=0.0)
    b.publish(2, 1, 0)
    b.finish("w0.1", across.id, versions=((1, 2), (2, 2)), reward=0.0)
    b.finish("w0.1", after.id, versions=((2, 4),))
    b.finish("w0.1", late.id, versions=((1, 4),), reward=0.0)
    assert b.told("evaluation") == []
    again = b.assigned("w0.1")
    assert sorted(episode.task.id for episode in again) == ["0", "1", "2"]
    assert {episode.id for episode in again}.isdisjoint({before.id, across.id, late.id})
    assert {e.task.id: e.seed for e in again}["0"] == before.seed
    for episode in again:
        b.finish("w0.1", episode.id, versions=((2, 4),))
    (told,) = b.told("evaluation")
    assert (told["version_min"], told["version_max"]) == (2, 2)
    assert (told["n"], told["failed"], told["score"]) == (4, 0, 1.0)
    assert b.told("failures") == [], "nothing failed"


def test_an_evaluation_that_is_not_pinned_keeps_all_its_versions() -> None:
    b = bench()
    evaluate(b, 2, pinned=False)
    first, second = b.assigned("w0.1")
    b.finish("w0.1", first.id, versions=((1, 4),))
    b.publish(2, 1, 0)
    b.finish("w0.1", second.id, versions=((1, 2), (2, 2)))
    (told,) = b.told("evaluation")
    assert (told["version_min"], told["version_max"], told["n"]) == (1, 2, 2)
