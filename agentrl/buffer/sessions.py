"""Peers come, come back, fall silent and are replaced.

Hello of a new incarnation     a new epoch; the old process is fenced, what it held is queued
Hello of the same incarnation  the same epoch; a worker keeps what it says it still plays
silence, or PeerLost           what it held is queued at once

Silence is theirs alone: while this process itself stood still, for a slow disk or a SIGSTOP, what
they said waits in the socket, and that time does not count.
"""

from agentrl.buffer.assignments import Assignments
from agentrl.buffer.leases import Leases
from agentrl.buffer.minting import Minter
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.push_gate import PushGate
from agentrl.buffer.state import State
from agentrl.wire.messages import Hello, Refused, Welcome

__all__ = ["Sessions"]


class Sessions:
    """The rules of peers over the parts that must hear of them."""

    def __init__(
        self,
        state: State,
        peers: Peers,
        assignments: Assignments,
        leases: Leases,
        minter: Minter,
        pushes: PushGate,
        now: float,
    ) -> None:
        self._state = state
        self._peers = peers
        self._assignments = assignments
        self._leases = leases
        self._minter = minter
        self._pushes = pushes
        self._awake_at = now

    def awake(self, now: float) -> None:
        """An event is about to be handled. After a gap in which nobody was heard, for there are
        ticks without a word of anyone, patience with everybody goes on where it was."""
        gap, settings = now - self._awake_at, self._state.settings
        self._awake_at = now
        two_beats = 2 * settings.heartbeat_s
        if gap > max(two_beats, settings.liveness_s - two_beats):
            for peer in self._peers:
                peer.last_seen += gap

    def hello(self, connection: str, hello: Hello, now: float) -> None:
        """Admit, readmit or fence."""
        if self._peers.is_fenced(hello):
            reason = f"{hello.name} has been replaced: this process must exit"
            self._state.send(connection, Refused(reason, fatal=True))
            return
        back = self._peers.is_current(hello)
        if not back:
            self._replace(self._peers.named(hello.name), connection)
            self._state.put(self._peers.admit(hello, now))
        peer = self._peers.named(hello.name)
        assert peer is not None
        peer.connection, peer.alive, peer.last_seen = connection, True, now
        self._state.send(connection, self._welcome(peer))
        self._tell(peer, "back" if back else "joined")
        self._resume(peer, hello, now)

    def seen(self, peer: Peer, connection: str, now: float) -> None:
        """A message has come: the peer is there."""
        peer.connection, peer.last_seen = connection, now
        if not peer.alive:
            peer.alive = True
            self._tell(peer, "back")

    def stranger(self, connection: str, epoch: int, seq: int) -> bool:
        """A replaced process must exit, and is told so (True); one that was never welcomed here is
        not answered: it says Hello and sends again."""
        if not self._peers.is_replaced(epoch):
            return False
        reason = f"epoch {epoch} has been replaced: this process must exit"
        self._state.send(connection, Refused(reason, seq, fatal=True))
        return True

    def ended(self, name: str, incarnation: str) -> None:
        """The driver saw this process end. A successor that has said Hello already is not meant: it
        has taken the place, and with it all that was held."""
        peer = self._peers.named(name)
        if peer is not None and incarnation in ("", peer.row.incarnation):
            self._lose(peer, "its process ended")

    def lose_silent(self, now: float) -> None:
        """Give up on those that have said nothing for the liveness time."""
        patience = self._state.settings.liveness_s
        for peer in self._peers.silent(now - patience):
            self._lose(peer, f"silent for more than {patience} s")

    def _resume(self, peer: Peer, hello: Hello, now: float) -> None:
        match peer.row.role:
            case "worker":
                self._assignments.reconcile(peer, hello.running)
            case "driver":
                self._minter.forget_credit()
            case "learner":
                self._leases.reconnected(peer, now)

    def _welcome(self, peer: Peer) -> Welcome:
        state = self._state
        return Welcome(
            epoch=peer.row.epoch,
            heartbeat_s=state.settings.heartbeat_s,
            versions=list(state.lineage.rows.values()),
            last_lease=state.last_lease,
            retired_through=state.retired_through,
            cursor=state.cursor,
            published_version=state.published_version,
            stepped=state.stepped,
            fates={str(fate): count for fate, count in sorted(state.fates.items())},
            republish=self._pushes.republish.number,
            engines=self._pushes.republish.engines,
            remade=state.marks.get("remade", 0),
        )

    def _replace(self, old: Peer | None, connection: str) -> None:
        if old is None:
            return
        if old.connection not in (None, connection):
            reason = f"{old.name} has been replaced by a newer process: this one must exit"
            self._state.send(old.connection, Refused(reason, fatal=True))
        self._lose(old, "replaced by a new process")
        self._leases.replaced(old.name)

    def _lose(self, peer: Peer, why: str) -> None:
        self._assignments.lose(peer)
        if peer.alive:
            peer.alive = False
            self._tell(peer, "lost", reason=why)

    def _tell(self, peer: Peer, state: str, **more: str) -> None:
        row = peer.row
        about = {"name": row.name, "role": row.role, "incarnation": row.incarnation}
        self._state.notify("peer", **about, state=state, **more)
