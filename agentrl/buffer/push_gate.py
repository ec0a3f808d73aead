"""Pushes that ask whether they may go, and pushes that the driver asks for.

    asked -> (a pinned evaluation runs, its driver is there, its episodes end) -> granted
    Republish -> told to the learner that asks -> (not heeded: told again at its next question)

Weights stay as they are while an evaluation is pinned. It needs no mint and no new weights, so it
ends, however many groups are charged. Of a call of a function nothing is heard before its end; its
worker ends one that hangs. Nothing is durable: a restarted buffer holds nothing, its learner asks
again, and so does its driver.
"""

import msgspec

from agentrl.buffer.evaluations import Evaluations
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.state import State
from agentrl.wire.messages import Engines, LeaseRequest, MayPush, PushGranted, Republish

__all__ = ["PushGate"]


class _Waiting(msgspec.Struct, frozen=True):
    """A push that waits for its grant, and the epoch of the learner that asked."""

    epoch: int
    version: int


class PushGate:
    """The push that waits, and how long nothing has moved that it waits for."""

    def __init__(self, state: State, evaluations: Evaluations, peers: Peers) -> None:
        self._state = state
        self._evaluations = evaluations
        self._peers = peers
        self._waiting: _Waiting | None = None
        self._num_reported = 0
        self._moved_at = 0.0
        self._asking: int | None = None
        self._heeded = 0
        #: The last push that the driver has asked for.
        self.republish = Republish(0)

    def asked_for(self, message: Republish) -> None:
        """The driver asks for another push of the newest weights, and may say where engines are."""
        if message.number > self.republish.number:
            if message.engines and message.engines != self.republish.engines:
                for worker in self._peers.workers():
                    self._state.send(worker.connection, Engines(message.engines))
            self.republish = message
        self._tell()

    def question(self, learner: Peer, message: LeaseRequest | MayPush) -> None:
        """A learner asks, so that it listens, and says which push it has heeded."""
        self._asking, self._heeded = learner.row.epoch, message.republished
        self._tell()

    def _tell(self) -> None:
        learner = None if self._asking is None else self._peers.sender(self._asking)
        if learner is not None and self._heeded < self.republish.number:
            self._state.send(learner.connection, self.republish)

    def request(self, learner: Peer, version: int, now: float) -> None:
        """A learner asks for its next push; only the last question counts."""
        if self._waiting is None:
            self._moved_at = now
        self._waiting = _Waiting(learner.row.epoch, version)

    def grant(self, now: float) -> None:
        """Answer the push that waits, unless it must wait on."""
        waiting = self._waiting
        if waiting is None or self._is_held(now):
            return
        self._waiting = None
        learner = self._peers.sender(waiting.epoch)
        if learner is not None:
            self._state.send(learner.connection, PushGranted(waiting.version))

    def _is_held(self, now: float) -> bool:
        evaluations = self._evaluations
        if evaluations.num_reported != self._num_reported:
            self._num_reported, self._moved_at = evaluations.num_reported, now
        is_moving = now - self._moved_at < self._state.settings.hold_patience_s
        holds = evaluations.is_pinned and (is_moving or evaluations.is_calling)
        return holds and self._peers.driver() is not None
