"""Leases and rows over a scripted connection: waiting, resending, refusing, stopping."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.errors import DataError, FencedError, PeerLostError
from agentrl.learner import lease_client
from agentrl.learner.collective_request import TURN_S, CollectiveRequest
from agentrl.learner.lease_client import RowClient
from agentrl.learner.question import RESEND_S, AskLease, StopRequested
from agentrl.types import EpisodeId, LeaseHeader, PayloadRef, TrajectoryMeta, TrajectoryRow
from agentrl.wire.messages import (
    Fetch,
    Lease,
    LeaseRequest,
    Message,
    NoMoreLeases,
    Refused,
    Republish,
    Rows,
    Welcome,
)
from tests.collectives import OneRank
from tests.manual_clock import ManualClock

Answer = Message | tuple[Message, list[bytes]] | None


class ScriptedPeer:
    """Answers `receive` from a list; None, and the end of the list, time out and move the clock."""

    def __init__(self, clock: ManualClock, answers: Sequence[Answer], republish: int = 0) -> None:
        self._republish = republish
        self.sent: list[Message] = []
        self.timeouts: list[float] = []
        self._clock = clock
        self._answers = deque(answers)

    @property
    def welcome(self) -> Welcome:
        return Welcome(1, 1.0, republish=self._republish)

    def send(self, message: Message, /) -> None:
        self.sent.append(message)

    def deliver(self, message: Message, /) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        self.timeouts.append(timeout_s)
        answer = self._answers.popleft() if self._answers else None
        if answer is None:
            self._clock.advance(timeout_s)
            raise TimeoutError
        return answer if isinstance(answer, tuple) else (answer, [])

    def flush(self, timeout_s: float, /) -> None:
        raise AssertionError("nothing here flushes")


class Source(OneRank):
    """The only rank, which records what it broadcast."""

    def __init__(self) -> None:
        self.num_broadcasts = 0
        self.last_broadcast = b""

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is not None
        self.num_broadcasts += 1
        self.last_broadcast = data
        return data


def lease(number: int) -> Lease:
    return Lease(LeaseHeader(number, []))


def ask(
    number: int, answers: Sequence[Answer], stop_after: int = 10**6
) -> tuple[object, ScriptedPeer, Source]:
    clock, backend = ManualClock(), Source()
    peer = ScriptedPeer(clock, answers)

    def stop() -> bool:
        return len(peer.timeouts) >= stop_after

    asking = CollectiveRequest(peer, backend, stop, clock)
    return asking.ask(AskLease(number)), peer, backend


def row(index: int, num_bytes: int = 100) -> TrajectoryRow:
    meta = TrajectoryMeta(num_tokens=0, num_sampled=0, num_turns=0, reward=0.0, versions=[])
    return TrajectoryRow(EpisodeId("g", index), meta, PayloadRef("s", 0, index, num_bytes, 0))


class Listener(OneRank):
    """A rank that is not the source and hears what another one said."""

    is_source = False

    def __init__(self, source: Source) -> None:
        self._source = source

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is None
        return self._source.last_broadcast


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Refused("replaced", fatal=True), FencedError),
        (Refused("never given", 5), DataError),
        (lease(3), DataError),
    ],
)
def test_what_goes_wrong_on_the_source_is_raised_on_every_rank(
    answer: Message, error: type[Exception]
) -> None:
    clock, source = ManualClock(), Source()
    for rank in (source, Listener(source)):
        peer = ScriptedPeer(clock, [answer])
        asking = CollectiveRequest(peer, rank, lambda: False, clock)
        with pytest.raises(error):
            asking.ask(AskLease(2))


def test_a_long_wait_is_many_short_ones_with_a_broadcast_each() -> None:
    answer, peer, backend = ask(1, [None, None, None, lease(1)])
    assert answer == lease(1)
    assert backend.num_broadcasts == 4
    assert set(peer.timeouts) == {TURN_S}
    assert peer.sent == [LeaseRequest(1)]


def test_an_unanswered_request_is_sent_again_after_its_time_and_after_a_reconnect() -> None:
    silent = int(RESEND_S / TURN_S)
    _, peer, _ = ask(2, [None] * silent + [None, lease(2)])
    assert peer.sent == [LeaseRequest(2)] * 2
    _, peer, _ = ask(2, [Welcome(epoch=2, heartbeat_s=1.0), lease(2)])
    assert peer.sent == [LeaseRequest(2)] * 2


def test_a_repeated_old_answer_is_ignored_and_a_later_lease_is_refused() -> None:
    answer, _, _ = ask(3, [lease(2), Rows(9), NoMoreLeases(3, "early"), lease(3)])
    assert answer == lease(3)
    with pytest.raises(DataError, match="lease 4 came while the learner waits for lease 3"):
        ask(3, [lease(4)])


def test_the_end_of_leases_and_a_request_to_stop_are_told_apart() -> None:
    assert ask(3, [NoMoreLeases(2, "source exhausted")])[0] == NoMoreLeases(2, "source exhausted")
    answer, peer, _ = ask(3, [], stop_after=2)
    assert answer == StopRequested()
    assert len(peer.timeouts) == 2


def test_a_push_that_is_asked_for_is_heeded_once_by_every_rank() -> None:
    clock, source = ManualClock(), Source()
    peer = ScriptedPeer(clock, [Republish(4), Republish(4), lease(2)])
    asking = CollectiveRequest(peer, source, lambda: False, clock)
    other = CollectiveRequest(ScriptedPeer(clock, []), Listener(source), lambda: False, clock)
    assert asking.ask(AskLease(2)) == Republish(4)
    assert other.ask(AskLease(2)) == Republish(4)
    assert asking.ask(AskLease(2)) == lease(2), "what comes again was heeded"
    assert peer.sent == [LeaseRequest(2), LeaseRequest(2, republished=4)]


def test_a_learner_has_nothing_to_heed_that_was_asked_for_before_it_began() -> None:
    peer = ScriptedPeer(ManualClock(), [Republish(3), Republish(4)], republish=3)
    asking = CollectiveRequest(peer, Source(), lambda: False, ManualClock())
    assert asking.ask(AskLease(1)) == Republish(4)
    assert peer.sent == [LeaseRequest(1, republished=3)]


def test_a_refusal_is_an_error_and_a_fatal_one_fences() -> None:
    with pytest.raises(DataError, match="refused message 5 of the learner: no such lease"):
        ask(1, [Refused("no such lease", seq=5)])
    with pytest.raises(FencedError, match="newer epoch"):
        ask(1, [Refused("newer epoch", fatal=True)])


def test_rows_are_asked_for_in_bounded_chunks_and_damaged_ones_come_back_as_none() -> None:
    clock = ManualClock()
    half = lease_client.FETCH_BYTES // 2
    rows = [row(0, half), row(1, half), row(2, 2 * lease_client.FETCH_BYTES), row(3)]
    answers: list[Answer] = [
        (Rows(1, missing=[1]), [b""] * 10),
        (Rows(2), [b""] * 5),
        (Rows(99), [b"stray"]),
        (Rows(3), [b""] * 5),
    ]
    peer = ScriptedPeer(clock, answers)
    found = RowClient(peer, clock).fetch(rows)
    assert [f is None for f in found] == [False, True, False, False]
    fetches = [m for m in peer.sent if isinstance(m, Fetch)]
    assert [[p.offset for p in f.payloads] for f in fetches] == [[0, 1], [2], [3]]


def test_a_fetch_is_repeated_after_a_reconnect_and_its_deadline_names_it() -> None:
    clock = ManualClock()
    peer = ScriptedPeer(clock, [Welcome(epoch=2, heartbeat_s=1.0), (Rows(1), [b""] * 5)])
    assert len(RowClient(peer, clock).fetch([row(0)])) == 1
    assert len(peer.sent) == 2
    silent = ScriptedPeer(clock, [])
    with pytest.raises(PeerLostError, match=r"did not answer fetch 1 \(1 payloads\) within 120 s"):
        RowClient(silent, clock).fetch([row(0)])
    assert len(silent.sent) == 120 / lease_client.RESEND_FETCH_S == 4


def test_a_fetch_whose_answer_was_dropped_is_sent_again() -> None:
    clock = ManualClock()
    peer = ScriptedPeer(clock, [None, (Rows(1), [b""] * 5), (Rows(1), [b""] * 5), None])
    client = RowClient(peer, clock)
    assert len(client.fetch([row(0)])) == 1
    assert (clock.now(), len(peer.sent)) == (lease_client.RESEND_FETCH_S, 2)
    with pytest.raises(PeerLostError, match="fetch 2"):
        client.fetch([row(0)])  # the second answer to the first is none to this one


class Asker(Source):
    """Of two ranks that train on the same rows the one that asks."""

    number = 6


class Told(Listener):
    """The other one."""

    number = 6


def test_one_rank_of_a_replica_asks_for_the_rows_and_tells_the_others() -> None:
    clock, asker = ManualClock(), Asker()
    peer = ScriptedPeer(clock, [(Rows(1, missing=[1]), [b""] * 10)])
    silent = ScriptedPeer(clock, [])
    found = RowClient(peer, clock, asker).fetch_shared([row(0), row(1)])
    told = RowClient(silent, clock, Told(asker)).fetch_shared([row(0), row(1)])
    assert [each is None for each in found] == [each is None for each in told] == [False, True]
    assert silent.sent == []


def test_what_fails_on_the_rank_that_asks_is_raised_on_those_that_are_told() -> None:
    clock, asker = ManualClock(), Asker()
    with pytest.raises(PeerLostError, match=r"^the buffer did not answer fetch 1"):
        RowClient(ScriptedPeer(clock, []), clock, asker).fetch_shared([row(0)])
    with pytest.raises(PeerLostError, match="learner rank 6: the buffer did not answer fetch 1"):
        RowClient(ScriptedPeer(clock, []), clock, Told(asker)).fetch_shared([row(0)])


def test_an_answer_with_too_few_columns_is_refused() -> None:
    clock = ManualClock()
    peer = ScriptedPeer(clock, [(Rows(1), [b""] * 4)])
    with pytest.raises(DataError, match="4 columns instead of 5"):
        RowClient(peer, clock).fetch([row(0)])
