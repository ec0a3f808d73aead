"""The rules of a peer's conversation, on a clock that is moved by hand."""

import math

import pytest

from agentrl.errors import FencedError, PeerLostError
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason
from agentrl.wire.conversation import HELLO_S, MAX_SILENT_BEATS, Conversation
from agentrl.wire.messages import (
    Ack,
    Cancel,
    Finished,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Retire,
    Welcome,
)
from agentrl.wire.outbox import Outbox

BEAT_S, RESEND_S, TIMEOUT_S = 1.0, 2.0, 60.0
PLAYED = EpisodeId("g", 1)


def talk(*, welcomed_at: float | None = 0.0) -> Conversation:
    found = Conversation(
        "worker",
        "worker-0",
        "i",
        lambda: [PLAYED],
        Outbox(8, RESEND_S),
        TIMEOUT_S,
    )
    found.begin(0.0)
    if welcomed_at is not None:
        say(found, welcomed_at)
        hear(found, Welcome(1, BEAT_S), welcomed_at)
    return found


def say(found: Conversation, now: float) -> list[Message]:
    """All that is due."""
    said = []
    while (pending := found.due(now)) is not None:
        found.said(pending, now)
        said.append(pending.message)
    return said


def hear(found: Conversation, message: Message, now: float) -> bool:
    found.heard(now)
    return found.take(message)


def test_hello_is_said_again_and_again_until_the_deadline() -> None:
    found = talk(welcomed_at=None)
    hello = Hello("worker", "worker-0", "i", [PLAYED])
    assert say(found, 0.0) == [hello]
    assert say(found, HELLO_S / 2) == []
    assert found.next_due() == HELLO_S
    assert found.next_due(is_blocked=True) == TIMEOUT_S
    assert say(found, HELLO_S) == [hello]
    with pytest.raises(PeerLostError, match="no Welcome from the buffer"):
        found.due(TIMEOUT_S)


def test_what_is_delivered_waits_for_the_welcome_and_goes_out_in_order_until_its_ack() -> None:
    found = talk(welcomed_at=None)
    for number in (1, 2):
        found.outbox.add(Retire(number), ())
    assert say(found, 0.0) == [Hello("worker", "worker-0", "i", [PLAYED])]
    assert not hear(found, Welcome(1, 9.0), 0.5), "the first Welcome is no news"
    assert found.epoch == 1
    assert say(found, 0.5) == [Retire(1), Retire(2)]
    assert not hear(found, Ack([1]), 0.6)
    assert found.next_due() == 0.5 + RESEND_S
    assert say(found, 0.5 + RESEND_S) == [Retire(2)]


def test_after_a_lost_connection_all_that_is_unsettled_is_due_at_once_under_the_new_epoch() -> None:
    found = talk()
    done = EpisodeReport(EpisodeId("g", 2), Outcome.DONE, StopReason.TERMINATED, [])
    found.outbox.add(Finished(done), ())
    found.outbox.add(Retire(1), ())
    assert len(say(found, 0.1)) == 2
    found.lose(0.2, "a test")
    assert say(found, 0.2) == [Hello("worker", "worker-0", "i", [PLAYED, done.id])]
    assert hear(found, Welcome(7, BEAT_S), 0.3)
    assert found.epoch == 7
    assert say(found, 0.3) == [Finished(done), Retire(1)]


def test_a_beat_is_due_when_either_side_was_quiet_for_one_and_not_more_often() -> None:
    found = talk()
    assert say(found, 0.9) == []
    found.spoke(0.9)
    assert say(found, BEAT_S) == [Heartbeat()], "what speaks alone must still hear"
    assert found.next_due() == 2 * BEAT_S
    assert not hear(found, Heartbeat(), 1.1)


def test_a_silent_buffer_is_lost_unless_nobody_listens() -> None:
    found = talk()
    silent_at = MAX_SILENT_BEATS * BEAT_S
    assert found.next_due(is_blocked=True) == silent_at
    found.is_held_back = True
    assert say(found, silent_at) == [Heartbeat()]
    assert found.next_due(is_blocked=True) == math.inf
    found.is_held_back = False
    assert say(found, silent_at) == [Hello("worker", "worker-0", "i", [PLAYED])]
    assert not found.is_welcomed


def test_a_refusal_settles_its_message_and_a_fatal_one_ends_the_process() -> None:
    found = talk()
    found.outbox.add(Retire(1), ())
    assert hear(found, Refused("no", seq=1), 0.0), "the owner hears of it"
    assert len(found.outbox) == 0
    assert hear(found, Cancel([PLAYED]), 0.0)
    with pytest.raises(FencedError, match="worker-0 must exit, the buffer says: replaced"):
        hear(found, Refused("replaced", fatal=True), 0.0)
