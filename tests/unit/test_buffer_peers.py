"""Peers come and go: who is lost, who is fenced, what a peer may say and to whom answers go."""

import pytest

from agentrl.buffer.events import FromPeer, Tick
from agentrl.types import EpisodeId
from agentrl.wire.messages import Barrier, Cancel, Drain, Fetch, Heartbeat, PeerLost, Refused
from tests.unit.buffer_bench import bench


def test_a_lost_worker_gives_its_episodes_back_at_once() -> None:
    b = bench(workers=("w0", "w1"), capacity=1)
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    (other,) = b.assigned("w1.1")
    b.finish("w1.1", other.id)
    b.say("driver.1", PeerLost("w0"))
    (again,) = b.assigned("w1.1")
    assert again.id == EpisodeId(mine.id.group, mine.id.index, 1)


def test_a_silent_worker_is_lost_and_one_that_beats_is_not() -> None:
    b = bench(workers=("w0", "w1"))
    b.offer(1)
    b.now = 6.0
    b.say("w1.1", Heartbeat())
    b.now = 12.0
    b.do(Tick())
    lost = [data["name"] for data in b.told("peer") if data["state"] == "lost"]
    assert "w0" in lost
    assert "w1" not in lost


@pytest.mark.parametrize("first", ["tick", "w1"])
def test_a_buffer_that_stood_still_itself_gives_nobody_up(first: str) -> None:
    b = bench(workers=("w0", "w1"))
    b.now = 1.0
    b.do(Tick())
    b.now = 12.0  # one commit took 11 s; what was said meanwhile waits in the socket
    if first == "w1":
        b.say("w1.1", Heartbeat())
    b.do(Tick())
    assert [data for data in b.told("peer") if data["state"] == "lost"] == []
    for _ in range(10):
        b.now += 1.0
        b.say("w1.1", Heartbeat())
        b.do(Tick())
    lost = [data["name"] for data in b.told("peer") if data["state"] == "lost"]
    assert "w0" in lost
    assert "w1" not in lost


def test_a_new_process_of_a_name_fences_the_old_one() -> None:
    b = bench()
    b.offer(1)
    (episode, _) = b.assigned("w0.1")
    b.join("w0", "worker", "2")
    assert b.take("w0.1", Refused)[0].fatal
    b.finish("w0.1", episode.id)
    assert b.take("w0.1", Refused)[0].fatal
    b.join("w0", "worker", "1")
    assert b.take("w0.1", Refused)[0].fatal
    assert b.core.state.episodes[1, 0].attempt == 1


def test_a_worker_that_reconnects_keeps_what_it_still_plays() -> None:
    b = bench()
    b.offer(1)
    kept, gone = (episode.id for episode in b.assigned("w0.1"))
    stale = EpisodeId("00000009", 0)
    b.join("w0", "worker", "1", [kept, stale])
    assert b.take("w0.1", Cancel) == [Cancel(sorted([gone, stale]))]
    assert b.core.state.episodes[1, kept.index].attempt == 0
    row = b.core.state.episodes[1, gone.index]
    assert (row.attempt, row.engine_failures) == (1, 0)


def test_a_peer_may_only_say_what_its_role_says() -> None:
    b = bench()
    b.say("w0.1", Drain("mischief"))
    assert "a worker may not send Drain" in b.take("w0.1", Refused)[0].reason
    assert b.told("drained") == []


def test_what_cannot_be_read_settles_nothing_for_those_it_does_not_belong_to() -> None:
    b = bench(workers=("w0", "w1"))
    b.offer(1)
    (mine,) = b.assigned("w0.1")
    for peer in ("w1.1", "learner.1"):
        b.garble(peer, episode=mine.id)
    b.garble("w0.1")
    assert b.core.state.fates == {}
    row = b.core.state.find_episode(mine.id)
    assert row is not None
    assert row.worker == "w0"
    b.join("w0", "worker", "2")
    b.garble("w0.1", episode=mine.id)
    assert b.take("w0.1", Refused)[-1].fatal


def test_a_fetch_is_answered_to_the_connection_that_asked() -> None:
    b = bench()
    effects = b.do(FromPeer("learner.1", b.epochs["learner.1"], 0, Fetch(1, [])))
    assert [type(effect).__name__ for effect in effects] == ["ReadRows"]


def test_an_echo_comes_back_after_all_that_was_told_before() -> None:
    b = bench()
    b.say("driver.1", Barrier("now"))
    assert b.told("echo") == [{"id": "now"}]
