"""The rules of a peer's conversation with the buffer: what to say, and when. Pure: no socket, no
clock.

    CONNECTING -> WELCOMED <-> LOST -> (deadline) PeerLostError
                      any state -> (told to exit) FencedError

While LOST only Hello is spoken; on Welcome everything unsettled is due again under the new epoch.
Silence counts: what hears nothing for MAX_SILENT_BEATS heartbeats is LOST, and a Heartbeat is due
one beat after either side last spoke.

What this expects of the buffer: a Hello with a known incarnation is answered with the same epoch;
messages of an identity that has not said Hello are ignored; a Heartbeat is answered with one.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.errors import FencedError, PeerLostError
from agentrl.types import EpisodeId
from agentrl.wire.messages import (
    Ack,
    Finished,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Role,
    Welcome,
)
from agentrl.wire.outbox import Outbox, Pending

__all__ = ["Conversation"]

logger = logging.getLogger(__name__)

HELLO_S = 1.0
#: Heartbeats of silence after which the buffer counts as lost.
MAX_SILENT_BEATS = 3


@dataclass(eq=False)
class Conversation:
    """One process and its outbox. Times are in seconds, on one clock of the caller's, which asks
    what is `due`, says it, and tells that it has `said` it.

    `running`: which episodes play here now. `timeout_s`: most seconds without a Welcome. `welcome`:
    the last one, None before the first; `is_welcomed`: more than Hello may be said. `is_held_back`:
    the caller cannot listen, so silence means nothing.
    """

    role: Role
    name: str
    incarnation: str
    running: Callable[[], list[EpisodeId]]
    outbox: Outbox
    timeout_s: float = math.inf
    address: str = ""
    welcome: Welcome | None = field(default=None, init=False)
    is_welcomed: bool = field(default=False, init=False)
    is_held_back: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._lost_at = self._hello_at = 0.0
        self._beat_s = math.inf
        self._heard_at = self._spoke_at = self._beat_at = -math.inf

    @property
    def epoch(self) -> int:
        """What every message carries; 0 before the first Welcome."""
        return self.welcome.epoch if self.welcome else 0

    def begin(self, now: float) -> None:
        """The process is there; Hello is due."""
        self._lost_at = self._hello_at = now

    def lose(self, now: float, why: str) -> None:
        """The connection broke, or might as well have."""
        if self.is_welcomed:
            logger.info("%s: no word from the buffer (%s): saying hello again", self.name, why)
            self.is_welcomed = False
            self.begin(now)

    # ---- hearing ----

    def heard(self, now: float) -> None:
        """Something came, whatever it was."""
        self._heard_at = now

    def take(self, message: Message) -> bool:
        """Whether the owner is to have it; the first Welcome is no news. Raises FencedError when
        this process must exit."""
        match message:
            case Heartbeat():
                return False
            case Ack(seqs=seqs):
                self.outbox.settle(seqs)
                return False
            case Refused(reason=reason, fatal=True):
                raise FencedError(f"{self.name} must exit, the buffer says: {reason}")
            case Refused(seq=seq):
                self.outbox.settle([seq])
            case Welcome():
                known, self.welcome = self.welcome, message
                self.is_welcomed, self._beat_s = True, message.heartbeat_s
                self.outbox.rewind()
                return known is not None
            case _:
                pass
        return True

    # ---- speaking ----

    def due(self, now: float) -> Pending | None:
        """What to say now. Raises PeerLostError after `timeout_s` without a Welcome."""
        if self.is_welcomed and now >= self._silent_at:
            self.lose(now, f"silent for {now - self._heard_at:.1f} s")
        if not self.is_welcomed:
            return self._hello_due(now)
        pending = self.outbox.due(now)
        if pending is None and now >= self._beat_at_latest:
            return Pending(0, Heartbeat(), ())
        return pending

    def said(self, pending: Pending, now: float) -> None:
        """What was due went out."""
        self.spoke(now)
        match pending.message:
            case Hello():
                self._hello_at = now + HELLO_S
            case Heartbeat():
                self._beat_at = now
            case _:
                self.outbox.mark_sent(pending.seq, now)

    def spoke(self, now: float) -> None:
        """Something went out, whatever it was."""
        self._spoke_at = now

    def next_due(self, *, is_blocked: bool = False) -> float:
        """When to ask for what is `due` again; `is_blocked`: nothing can go out before it wakes the
        caller by itself."""
        if not self.is_welcomed:
            give_up = self._lost_at + self.timeout_s
            return give_up if is_blocked else min(self._hello_at, give_up)
        if is_blocked:
            return self._silent_at
        resend_at = self.outbox.next_due()
        soonest = min(self._silent_at, self._beat_at_latest)
        return soonest if resend_at is None else min(soonest, resend_at)

    def _hello_due(self, now: float) -> Pending | None:
        if now >= self._lost_at + self.timeout_s:
            raise PeerLostError(
                f"{self.name}: no Welcome from the buffer at {self.address} for "
                f"{self.timeout_s:g} s: is it running, and with the keys of this run?"
            )
        if now < self._hello_at:
            return None
        hello = Hello(self.role, self.name, self.incarnation, self._unsettled())
        return Pending(0, hello, ())

    def _unsettled(self) -> list[EpisodeId]:
        """Episodes that the buffer need not give to anyone else: those that play here, and finished
        ones whose report waits for its Ack."""
        messages = self.outbox.messages()
        reported = [message.report.id for message in messages if isinstance(message, Finished)]
        return [*self.running(), *reported]

    @property
    def _silent_at(self) -> float:
        return math.inf if self.is_held_back else self._heard_at + MAX_SILENT_BEATS * self._beat_s

    @property
    def _beat_at_latest(self) -> float:
        """One beat after either side last spoke, but at most one Heartbeat a beat."""
        return max(min(self._spoke_at, self._heard_at), self._beat_at) + self._beat_s
