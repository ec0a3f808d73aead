"""The outbox against a model of two plain collections."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.wire.messages import Drain
from agentrl.wire.outbox import Outbox

pytestmark = pytest.mark.slow

LIMIT, RESEND_S = 5, 2.0


class OutboxMachine(RuleBasedStateMachine):
    """Every unsettled message is waiting (sent_at None) or sent, and is offered when due."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(LIMIT, RESEND_S)
        self.now = 0.0
        self.added = 0
        self.sent_at: dict[int, float | None] = {}

    @precondition(lambda self: not self.outbox.full)
    @rule()
    def add(self) -> None:
        self.added += 1
        assert self.outbox.add(Drain(str(self.added)), ()) == self.added
        self.sent_at[self.added] = None

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def send_one(self) -> None:
        pending = self.outbox.due(self.now)
        if pending is not None:
            self.outbox.mark_sent(pending.seq, self.now)
            self.sent_at[pending.seq] = self.now

    @rule(seqs=st.lists(st.integers(0, 30), max_size=4))
    def settle(self, seqs: list[int]) -> None:
        self.outbox.settle(seqs)
        for seq in seqs:
            self.sent_at.pop(seq, None)

    @rule()
    def reconnect(self) -> None:
        self.outbox.rewind()
        self.sent_at = dict.fromkeys(self.sent_at)

    @invariant()
    def it_holds_what_is_not_settled(self) -> None:
        assert len(self.outbox) == len(self.sent_at)
        assert self.outbox.full == (len(self.sent_at) == LIMIT)

    @invariant()
    def it_offers_the_first_waiting_message_then_the_oldest_due_one(self) -> None:
        waiting = [seq for seq, at in self.sent_at.items() if at is None]
        sent = [at for at in self.sent_at.values() if at is not None]
        offered = self.outbox.due(self.now)
        if waiting:
            assert offered is not None
            assert offered.seq == min(waiting)
            assert offered.message == Drain(str(offered.seq))
        elif sent and self.now >= min(sent) + RESEND_S:
            assert offered is not None
            assert self.sent_at[offered.seq] == min(sent)
        else:
            assert offered is None
            assert self.outbox.next_due() == (min(sent) + RESEND_S if sent else None)


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
