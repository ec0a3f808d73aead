"""Messages that wait for their Ack. Pure: no socket, no clock.

    WAITING -> SENT -> settled (Ack or Refused)
       ^        |
       +--------+  `rewind` after a new connection

Sequence numbers are 1, 2, 3, ... Waiting messages leave in that order, before any repetition, so
over a FIFO connection the buffer sees them first in order. A sent message that is not settled
within `resend_s` is due again.
"""

from collections.abc import Iterable, Sequence

import msgspec

from agentrl.wire.frames import ColumnBuffer
from agentrl.wire.messages import Message

__all__ = ["Outbox", "Pending"]


class Pending(msgspec.Struct, frozen=True):
    """A message and its columns under their sequence number."""

    seq: int
    message: Message
    columns: Sequence[ColumnBuffer]


class Outbox:
    """At most `limit` unsettled messages; times are in seconds on the caller's clock."""

    def __init__(self, limit: int, resend_s: float) -> None:
        self._limit = limit
        self._resend_s = resend_s
        self._last_seq = 0
        self._waiting: dict[int, Pending] = {}
        self._sent: dict[int, tuple[float, Pending]] = {}  # in order of the last sending

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def messages(self) -> list[Message]:
        """Every unsettled message."""
        sent = (pending for _, pending in self._sent.values())
        return [pending.message for pending in (*self._waiting.values(), *sent)]

    @property
    def full(self) -> bool:
        """No room for another message."""
        return len(self) >= self._limit

    def add(self, message: Message, columns: Sequence[ColumnBuffer]) -> int:
        """Take a message and return its sequence number. The outbox must not be full."""
        assert not self.full
        self._last_seq += 1
        self._waiting[self._last_seq] = Pending(self._last_seq, message, columns)
        return self._last_seq

    def settle(self, seqs: Iterable[int]) -> None:
        """Forget these: the buffer has committed or refused them. Unknown numbers are ignored."""
        for seq in seqs:
            self._waiting.pop(seq, None)
            self._sent.pop(seq, None)

    def due(self, now: float) -> Pending | None:
        """What to send now: the first waiting message, else one that is due again, else None."""
        if self._waiting:
            return next(iter(self._waiting.values()))
        for sent_at, pending in self._sent.values():
            return pending if now >= sent_at + self._resend_s else None
        return None

    def mark_sent(self, seq: int, now: float) -> None:
        """Note that the message `seq` of `due` went out."""
        pending = self._waiting.pop(seq, None) or self._sent.pop(seq)[1]
        self._sent[seq] = (now, pending)

    def next_due(self) -> float | None:
        """When `due` has something at the latest; None when all is settled."""
        if self._waiting:
            return 0.0
        return next((sent_at + self._resend_s for sent_at, _ in self._sent.values()), None)

    def rewind(self) -> None:
        """Everything waits again, in order: the connection that carried it is gone."""
        pendings = [*self._waiting.values(), *(pending for _, pending in self._sent.values())]
        self._waiting = {p.seq: p for p in sorted(pendings, key=lambda p: p.seq)}
        self._sent = {}
