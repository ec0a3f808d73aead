"""Whether a push may go, over a scripted connection: asking, waiting, and what ends the wait."""

from collections.abc import Callable, Sequence

import pytest

from agentrl.errors import DataError, FencedError
from agentrl.learner.collective_request import TURN_S, CollectiveRequest
from agentrl.learner.question import RESEND_S, AskPush, StopRequested
from agentrl.types import LeaseHeader
from agentrl.wire.messages import Lease, MayPush, PushGranted, Refused, Republish, Welcome
from tests.manual_clock import ManualClock
from tests.unit.test_learner_lease_client import Answer, ScriptedPeer, Source


class Ask:
    """One question about version 7, its answer, and what was said meanwhile."""

    def __init__(
        self,
        answers: Sequence[Answer],
        *,
        stops_after: int = 10**6,
    ) -> None:
        clock, self.backend = ManualClock(), Source()
        self.peer = ScriptedPeer(clock, answers)

        def after(count: int) -> Callable[[], bool]:
            return lambda: len(self.peer.timeouts) >= count

        asking = CollectiveRequest(self.peer, self.backend, after(stops_after), clock)
        self.answer = asking.ask(AskPush(7))


def test_the_wait_ends_with_the_grant() -> None:
    asked = Ask([None, None, PushGranted(7)])
    assert asked.answer == PushGranted(7)
    assert asked.peer.sent == [MayPush(7)]
    assert set(asked.peer.timeouts) == {TURN_S}, "no wait on the buffer is without a deadline"
    assert asked.backend.num_broadcasts == 3, "the other ranks hear of every turn"


def test_the_grant_of_another_push_and_what_is_left_over_from_before_are_passed_by() -> None:
    asked = Ask([PushGranted(6), Lease(LeaseHeader(3, [])), None, PushGranted(7)])
    assert asked.answer == PushGranted(7)
    assert len(asked.peer.timeouts) == 4


def test_a_new_connection_and_a_long_silence_are_asked_again() -> None:
    assert Ask([Welcome(2, 1.0), PushGranted(7)]).peer.sent == [MayPush(7)] * 2
    silence: list[Answer] = [None] * int(RESEND_S / TURN_S)
    assert Ask([*silence, PushGranted(7)]).peer.sent == [MayPush(7)] * 2


def test_a_request_to_stop_ends_the_wait_without_a_push() -> None:
    assert Ask([], stops_after=3).answer == StopRequested()


def test_an_engine_without_weights_ends_the_wait_with_the_push() -> None:
    asked = Ask([None, None, None, Republish(1)])
    assert asked.answer == Republish(1)


def test_what_the_buffer_refuses_meanwhile_is_not_lost() -> None:
    with pytest.raises(DataError, match="refused message 5 of the learner: lease 3 was"):
        Ask([Refused("lease 3 was never given", 5)])
    with pytest.raises(FencedError, match="replaced"):
        Ask([Refused("it has been replaced", fatal=True)])
