"""What a learner asks the buffer: the question, which message answers it, and when to ask again.

Pure: no rank, no clock. A Welcome means that the connection was made anew: what is unanswered is
asked again. A Republish (an engine lacks weights) answers any question, once: each question says
the last that was heeded, so that one that came at another time comes again. Refused are a lease out
of order, and whatever the buffer refused of this learner.
"""

import msgspec

from agentrl.errors import DataError, FencedError
from agentrl.wire.messages import (
    Lease,
    LeaseRequest,
    MayPush,
    Message,
    NoMoreLeases,
    PushGranted,
    Refused,
    Republish,
    Welcome,
)

__all__ = [
    "RESEND_S",
    "Answer",
    "AskLease",
    "AskPush",
    "BufferQuestion",
    "StopRequested",
    "raise_if_refused",
]

#: Seconds after which an unanswered question is asked again (the buffer may have restarted).
RESEND_S = 30.0


class StopRequested(msgspec.Struct, frozen=True, tag_field="t", tag="stop_requested"):
    """The source rank was asked to stop: all ranks end here."""


Answer = Lease | NoMoreLeases | PushGranted | StopRequested | Republish


class AskLease(msgspec.Struct, frozen=True):
    """For lease `number`."""

    number: int

    @property
    def message(self) -> LeaseRequest:
        return LeaseRequest(self.number)

    def answer(self, message: Message) -> Answer | None:
        """DataError for a later lease: they must be stepped in order."""
        if isinstance(message, NoMoreLeases) and message.after < self.number:
            return message
        if not isinstance(message, Lease) or message.header.number < self.number:
            return None
        if message.header.number > self.number:
            raise DataError(
                f"lease {message.header.number} came while the learner waits for lease "
                f"{self.number}: leases must be stepped in order"
            )
        return message


class AskPush(msgspec.Struct, frozen=True):
    """Whether `version` may be pushed now. An engine that lacks weights ends the wait as well: what
    is held back could be all that the evaluation needs."""

    version: int

    @property
    def message(self) -> MayPush:
        return MayPush(self.version)

    def answer(self, message: Message) -> Answer | None:
        is_mine = isinstance(message, PushGranted) and message.version == self.version
        return PushGranted(self.version) if is_mine else None


class BufferQuestion:
    """One that waits for its answer; `now` is in seconds, on one clock of the caller's. `heeded`:
    the number of the last Republish that this learner has taken for an answer."""

    def __init__(self, asked: AskLease | AskPush, now: float, heeded: int = 0) -> None:
        self._asked = asked
        self._heeded = heeded
        self._ask_at = now

    def due(self, now: float) -> Message | None:
        """What to send now, if anything."""
        if now < self._ask_at:
            return None
        self._ask_at = now + RESEND_S
        return msgspec.structs.replace(self._asked.message, republished=self._heeded)

    def hear(self, message: Message, now: float) -> Answer | None:
        """The answer, if this is one. Raises FencedError or DataError when the buffer refused
        something, DataError for a lease out of order."""
        raise_if_refused(message)
        if isinstance(message, Welcome):
            self._ask_at = now
        if isinstance(message, Republish):
            return message if message.number > self._heeded else None
        return self._asked.answer(message)


def raise_if_refused(message: Message) -> None:
    """Raise FencedError or DataError when the buffer refused something this learner sent."""
    if not isinstance(message, Refused):
        return
    if message.fatal:
        raise FencedError(f"the buffer refused this learner: {message.reason}")
    raise DataError(f"the buffer refused message {message.seq} of the learner: {message.reason}")
