"""A question to the buffer that all ranks wait for together.

    asked -> (silence: asked again) -> answered | the learner is to stop | Republish

The source rank alone speaks to the buffer. It waits in short turns and tells the other ranks after
each, so that no collective outlives its own deadline however long generation takes, and a request
to stop is seen by all ranks at the same moment. What goes wrong on the source is raised on all.

A Welcome means that the connection was made anew: what was unanswered is asked again. A Republish
(an engine lacks weights) is heeded once, and only here, between iterations; each question says
which was the last, so that one that came at another time comes again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from agentrl.clock import Clock
from agentrl.errors import DataError, FencedError
from agentrl.learner.agreement import Rank, by_source
from agentrl.wire.messages import (
    Heartbeat,
    LeaseRequest,
    Message,
    PushRequest,
    Refused,
    Republish,
    Welcome,
)

__all__ = [
    "RESEND_S",
    "TURN_S",
    "Asking",
    "LearnerPeer",
    "StopRequested",
    "raise_if_refused",
]

#: Seconds of one bounded wait; also how soon a request to stop is seen.
TURN_S = 2.0
#: Seconds after which an unanswered question is asked again (the buffer may have restarted).
RESEND_S = 30.0

A = TypeVar("A")


class StopRequested(msgspec.Struct, frozen=True, tag_field="t", tag="stop_requested"):
    """The source rank was asked to stop: all ranks end here."""


class LearnerPeer(Protocol):
    """A connection to the buffer, used from one thread (`agentrl.wire.blocking.BlockingPeer`)."""

    @property
    def welcome(self) -> Welcome:
        """The buffer's last Welcome."""
        ...

    def send(self, message: Message, /) -> None:
        """Send once, without asking for an Ack."""
        ...

    def deliver(self, message: Message, /) -> object:
        """Queue a message that is resent until the buffer has committed it, in order."""
        ...

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        """The next message and its columns; raises TimeoutError after `timeout_s`."""
        ...

    def flush(self, timeout_s: float, /) -> None:
        """Wait until everything delivered has been committed; raises PeerLostError."""
        ...


class Asking:
    """Asks on the source rank; the other ranks only listen."""

    def __init__(
        self,
        peer: LearnerPeer,
        backend: Rank,
        should_stop: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._peer = peer
        self._backend = backend
        self._should_stop = should_stop
        self._clock = clock
        self._ask_at = 0.0
        self._heeded = peer.welcome.republish

    def ask(
        self, question: LeaseRequest | PushRequest, take: Callable[[Message], A | None], kind: Any
    ) -> A | StopRequested | Republish:
        """The first message that `take` makes an answer of type `kind` of, or what comes before
        one. Collective: every rank gets the same.

        Raises what `take` raises, FencedError or DataError when the buffer refuses something, and
        what the connection raises when it is gone.
        """
        self._ask_at = self._clock.now()
        while True:
            heard: A | StopRequested | Republish | Heartbeat = by_source(
                self._backend,
                lambda: self._turn(question, take),
                kind | StopRequested | Republish | Heartbeat,
            )
            if not isinstance(heard, Heartbeat):
                return heard

    def _turn(
        self, question: LeaseRequest | PushRequest, take: Callable[[Message], A | None]
    ) -> A | StopRequested | Republish | Heartbeat:
        if self._should_stop():
            return StopRequested()
        if self._clock.now() >= self._ask_at:
            self._peer.send(msgspec.structs.replace(question, republished=self._heeded))
            self._ask_at = self._clock.now() + RESEND_S
        try:
            message, _ = self._peer.receive(TURN_S)
        except TimeoutError:
            return Heartbeat()
        raise_if_refused(message)
        if isinstance(message, Welcome):
            self._ask_at = self._clock.now()
        if isinstance(message, Republish) and message.number > self._heeded:
            self._heeded = message.number
            return message
        return take(message) or Heartbeat()


def raise_if_refused(message: Message) -> None:
    """Raise FencedError or DataError when the buffer refused something this learner sent."""
    if not isinstance(message, Refused):
        return
    if message.fatal:
        raise FencedError(f"the buffer refused this learner: {message.reason}")
    raise DataError(f"the buffer refused message {message.seq} of the learner: {message.reason}")
