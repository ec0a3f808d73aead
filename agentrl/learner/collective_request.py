"""A question to the buffer that all ranks wait for together.

    asked -> (silence: asked again) -> answered | the learner is to stop | an engine lacks weights

The source rank alone speaks to the buffer. It waits in short turns and tells the other ranks after
each, so that no collective outlives its own deadline however long generation takes, and a request
to stop is seen by all ranks at the same moment. What goes wrong on the source is raised on all.
What is asked and which message answers stands in `question`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.clock import Clock
from agentrl.learner.collective_errors import Rank, by_source
from agentrl.learner.question import (
    Answer,
    AskLease,
    AskPush,
    BufferQuestion,
    StopRequested,
)
from agentrl.wire.messages import Heartbeat, Message, Republish, Welcome

__all__ = ["TURN_S", "CollectiveRequest", "LearnerPeer"]

#: Seconds of one bounded wait; also how soon a request to stop is seen.
TURN_S = 2.0


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


@dataclass(eq=False)
class CollectiveRequest:
    """Asks on the source rank; the other ranks only listen."""

    _peer: LearnerPeer
    _backend: Rank
    _should_stop: Callable[[], bool]
    _clock: Clock

    def __post_init__(self) -> None:
        self._heeded = self._peer.welcome.republish

    def ask(self, asked: AskLease | AskPush) -> Answer:
        """The answer, or what comes before one. Collective: every rank gets the same.

        Raises what `BufferQuestion.hear` raises, and what the connection raises when it is gone.
        """
        question = BufferQuestion(asked, self._clock.now(), self._heeded)
        while True:
            heard: Answer | Heartbeat = by_source(
                self._backend, lambda: self._turn(question), Answer | Heartbeat
            )
            if isinstance(heard, Republish):
                self._heeded = heard.number
            if not isinstance(heard, Heartbeat):
                return heard

    def _turn(self, question: BufferQuestion) -> Answer | Heartbeat:
        if self._should_stop():
            return StopRequested()
        message = question.due(self._clock.now())
        if message is not None:
            self._peer.send(message)
        try:
            heard, _ = self._peer.receive(TURN_S)
        except TimeoutError:
            return Heartbeat()
        return question.hear(heard, self._clock.now()) or Heartbeat()
