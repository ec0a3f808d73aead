"""The shell of the production core under virtual time: no socket, no disk, no clock.

Carries events to `BufferCore` one at a time and its effects out, in the order that `events` of the
buffer prescribes: rows first, then messages. What a message causes waits until those before it are
done. The core can be lost at any moment; another one is then built from the rows alone. One
that stands still finds, when it goes on, that time has passed, and then what was said meanwhile.

    SERVING <-> STILL          any -> AWAY -> SERVING
"""

from collections import deque
from collections.abc import Callable

from agentrl.buffer.core import BufferCore
from agentrl.buffer.events import (
    Commit,
    DropSegments,
    FromPeer,
    Send,
    Stored,
    Tick,
    in_order,
)
from agentrl.buffer.settings import BufferSettings
from agentrl.sim.columns import Columns
from agentrl.sim.durable import Durable
from agentrl.sim.network import Connection, Network
from agentrl.sim.peer import SimPeer
from agentrl.sim.timeline import Timeline
from agentrl.wire.messages import Ack, Finished, Heartbeat, Message

__all__ = ["Shell"]


class Shell:
    """`durable` holds the rows, `columns` the places of trajectories; `peers` are the living
    processes by connection; `core` is None while the buffer is away. `ack_drop_share`: see
    `Faults`."""

    def __init__(
        self,
        settings: BufferSettings,
        durable: Durable,
        network: Network,
        timeline: Timeline,
        ack_drop_share: float = 0.0,
    ) -> None:
        self.settings = settings
        self.durable = durable
        self.network = network
        self.columns = Columns(settings.segment_bytes)
        self.peers: dict[str, SimPeer] = {}
        self.timeline = timeline
        self._ack_drop_share = ack_drop_share
        self._connections: dict[str, Connection] = {}
        self._waiting: deque[FromPeer | Tick] = deque()
        self._busy = False
        self._still = False
        self._effects_left: int | None = None
        self._ended: Callable[[], object]
        self.core: BufferCore | None = BufferCore(settings, now=timeline.now)

    # ---- processes ----

    def join(self, peer: SimPeer) -> None:
        """A process has started."""
        self.peers[peer.connection] = peer
        self._connections[peer.connection] = self.network.connect()
        peer.join()

    def leave(self, peer: SimPeer) -> None:
        """A process has ended; what it said may still be on its way."""
        peer.gone = True
        del self.peers[peer.connection], self._connections[peer.connection]

    def crash(self, after: int, ended: Callable[[], object]) -> None:
        """The buffer ends, and only its rows remain: with the next effect but so many, in the midst
        of what an event causes. `ended` is called then."""
        if self._effects_left is None:
            self._effects_left, self._ended = after, ended

    def _end(self) -> None:
        self.core, self._still, self._effects_left = None, False, None
        self._waiting.clear()
        self._ended()

    def stand_still(self) -> None:
        """The buffer does nothing; what it is told waits."""
        self._still = self.core is not None

    def go_on(self) -> None:
        """It notices that time has passed before it hears anybody."""
        if self._still:
            self._still = False
            self._waiting.appendleft(Tick())
            self._work()

    def restart(self) -> None:
        """Another buffer reads them. Its peers must say Hello."""
        ledger = self.durable.load()
        there = set(self.columns.there)
        known = ledger.without_lost_segments(there)
        self.core = BufferCore(self.settings, known, self.timeline.now)
        self.columns.reopen(max(ledger.segments, default=0) + 1)
        self.columns.drop(there - set(self.core.state.segments))

    def connection(self, peer: SimPeer) -> Connection:
        """Between the buffer and a living process."""
        return self._connections[peer.connection]

    # ---- messages ----

    def post(self, peer: SimPeer, epoch: int, seq: int, message: Message) -> None:
        """Carry a message of a living process to the buffer; lost if that is away by then."""
        if not peer.gone:
            event = FromPeer(peer.connection, epoch, seq, message)
            self._connections[peer.connection].up.carry(
                lambda: self._take(event), counts=not isinstance(message, Heartbeat)
            )

    def tick(self) -> None:
        """The buffer's own timer."""
        self._take(Tick())

    # ---- inside ----

    def _take(self, event: FromPeer | Tick) -> None:
        if self.core is not None:
            self._waiting.append(event)
            self._work()

    def _work(self) -> None:
        if self._busy or self._still:
            return
        self._busy = True
        while self._waiting:
            self._carry(self._waiting.popleft())
        self._busy = False

    def _carry(self, event: FromPeer | Tick) -> None:
        assert self.core is not None
        effects = self.core.handle(self._stored(event), self.timeline.now)
        for effect in in_order(effects, self.core.state.needs_segment):
            match effect:
                case Commit(rows):
                    self.durable.commit(rows)
                case Send(peer, message):
                    self._send(peer, message)
                case DropSegments(segments):
                    self.columns.drop(segments)
            if self._effects_left is not None:
                self._effects_left -= 1
                if self._effects_left < 0:
                    self._end()
                    return

    def _send(self, connection: str, message: Message) -> None:
        peer = self.peers.get(connection)
        if peer is not None and not self._drops(message):
            self._connections[connection].down.carry(
                lambda: peer.arrive(message), counts=not isinstance(message, Heartbeat)
            )

    def _drops(self, message: Message) -> bool:
        share = self._ack_drop_share if isinstance(message, Ack) else 0.0
        return share > 0 and self.network.rng.random() < share

    def _stored(self, event: FromPeer | Tick) -> FromPeer | Stored | Tick:
        """A report that is wanted has its columns stored first."""
        assert self.core is not None
        if isinstance(event, Tick) or not isinstance(event.message, Finished):
            return event
        if not self.core.wants(event):
            return event
        message = event.message
        refs = tuple(self.columns.append(meta.num_tokens) for meta in message.report.trajectories)
        return Stored(event.peer, event.epoch, event.seq, message, refs)
