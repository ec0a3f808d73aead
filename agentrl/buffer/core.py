"""`BufferCore`: the buffer as a pure state machine, `handle(event, now) -> effects`.

It owns no socket, disk or clock. Every message of a peer is answered by Ack or Refused after its
rows are durable; every rule is idempotent, so a message that arrives twice changes nothing. The
rules are those of the desks (`desks`); who may say what stands in `dispatch`, and what follows from
each event in `pump`.
"""

from agentrl.buffer.desks import Desks
from agentrl.buffer.dispatch import Dispatch
from agentrl.buffer.events import Effect, FromPeer, Input, Tick, Unreadable
from agentrl.buffer.pump import pump
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.settings import BufferSettings

__all__ = ["BufferCore"]


class BufferCore:
    """Built from an empty ledger or a restored one; `now` is in seconds of a monotonic clock."""

    def __init__(
        self, settings: BufferSettings, ledger: LedgerState | None = None, now: float = 0.0
    ) -> None:
        self._desks = Desks(settings, ledger or LedgerState(), now)
        self._dispatch = Dispatch(self._desks)
        self.settings = settings
        self.state = self._desks.state
        self.peers = self._desks.peers
        self.minter = self._desks.minter

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Take one event; the effects are to be carried out in the order of `events`."""
        self._desks.reception.awake(now)
        if isinstance(event, Tick):
            self._desks.reception.lose_silent(now)
            self._dispatch.unpark(now)
        elif isinstance(event, Unreadable):
            self._dispatch.refuse(event, now)
        else:
            self._dispatch.take(event, now)
        pump(self._desks, now)
        return self.state.take_effects()

    def wants(self, event: FromPeer) -> bool:
        """Whether the columns of this Finished are worth storing: its sender is current and the
        ledger waits for this very attempt."""
        return self._dispatch.wants(event)

    def snapshot_of(self, event: FromPeer) -> tuple[int, int] | None:
        """The episode (mint, index) of a Snapshot that is worth keeping."""
        return self._dispatch.snapshot_of(event)

    def driver(self) -> str | None:
        """The driver's connection, if it is there."""
        return self._desks.driver()

    def stats(self) -> dict[str, float]:
        """The buffer's own figures now."""
        return self._desks.figures.now()
