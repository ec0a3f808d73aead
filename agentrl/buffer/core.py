"""`BufferCore`: the buffer as a pure state machine, `handle(event, now) -> effects`.

It owns no socket, disk or clock. It says which part hears what of whom; the parts, and what follows
from each event, are in `parts`. Every rule is idempotent, so a message that arrives twice changes
nothing. Every message of a peer is answered by Ack or Refused after its rows are durable,
but for reports that cannot be taken yet: one names a version to come, or came without its columns.
"""

import msgspec

from agentrl.buffer.events import Effect, FromPeer, Input, ReadRows, Stored, Tick, Unreadable
from agentrl.buffer.ids import kind_of
from agentrl.buffer.numbers import measured
from agentrl.buffer.parts import Parts
from agentrl.buffer.peers import Peer
from agentrl.buffer.rows import EpisodeRow, LedgerState
from agentrl.buffer.settings import BufferSettings
from agentrl.types import EpisodeId, EpisodeReport, Outcome, StopReason
from agentrl.wire.messages import (
    Ack,
    AnnounceVersion,
    Barrier,
    Capacity,
    Drain,
    Evaluate,
    EvalWeightsSaved,
    Fetch,
    Finished,
    GroupScore,
    Heartbeat,
    Hello,
    LeaseRequest,
    MayPush,
    Message,
    PeerLost,
    PushDone,
    Refused,
    Republish,
    Retire,
    Role,
    Snapshot,
    Stepped,
    Tasks,
)

__all__ = ["BufferCore"]


class BufferCore:
    """Built from an empty ledger or a restored one; `now` is in seconds of a monotonic clock."""

    def __init__(
        self, settings: BufferSettings, ledger: LedgerState | None = None, now: float = 0.0
    ) -> None:
        self._parts = Parts(settings, ledger or LedgerState(), now)
        self._assignments = self._parts.assignments
        self._leases = self._parts.leases
        self.settings = settings
        self.state = self._parts.state
        self.peers = self._parts.peers
        self.minter = self._parts.minter

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Take one event; the effects are to be carried out in the order of `events`."""
        self._parts.sessions.awake(now)
        if isinstance(event, Tick):
            self._parts.sessions.lose_silent(now)
            self._unpark(now)
        elif isinstance(event, Unreadable):
            self._refuse(event, now)
        else:
            self._take(event, now)
        self._parts.advance(now)
        return self.state.take_effects()

    def wants(self, event: FromPeer) -> bool:
        """Whether the columns of this Finished are worth storing: its sender is current and the
        ledger waits for this very attempt."""
        peer = self.peers.sender(event.epoch)
        if peer is None or not isinstance(event.message, Finished):
            return False
        report = event.message.report
        return report.outcome is Outcome.DONE and self._expects(peer, report.id)

    def snapshot_of(self, event: FromPeer) -> tuple[int, int] | None:
        """The episode (mint, index) of a Snapshot that is worth keeping: its sender plays this very
        attempt, and the ledger waits for it."""
        peer = self.peers.sender(event.epoch)
        if peer is None or not isinstance(event.message, Snapshot):
            return None
        row = self._played_by(peer, event.message.id)
        return None if row is None else (row.mint, row.index)

    def driver(self) -> str | None:
        """The driver's connection, if it is there."""
        return self._parts.driver()

    def stats(self) -> dict[str, float]:
        """The buffer's own figures now."""
        return self._parts.figures.now()

    # ---- who may say what ----

    def _take(self, event: FromPeer | Stored, now: float) -> None:
        """Hear a message, if its sender may say it."""
        if isinstance(event.message, Hello):
            self._parts.sessions.hello(event.peer, event.message, now)
            self._answer(event, None)
            return
        peer = self.peers.sender(event.epoch)
        if peer is None:
            self._parts.sessions.stranger(event.peer, event.epoch, event.seq)
            return
        self._parts.sessions.seen(peer, event.peer, now)
        if not self._must_come_again(peer, event, now):
            forbidden = _forbidden(peer.row.role, event.message)
            self._answer(event, forbidden or self._dispatch(peer, event, now))

    def _refuse(self, event: Unreadable, now: float) -> None:
        """Sending it again would change nothing, so it is refused, and what it was to settle is
        settled: an episode as poison, a group as one whose scoring failed."""
        peer = self.peers.sender(event.epoch)
        if peer is None:
            if not self._parts.sessions.stranger(event.peer, event.epoch, event.seq):
                self._answer(event, Refused(event.reason))
            return
        self._parts.sessions.seen(peer, event.peer, now)
        if peer.row.role == "worker" and event.episode is not None:
            outcome, stop = Outcome.POISON, StopReason.ERROR
            report = EpisodeReport(event.episode, outcome, stop, [], error=event.reason)
            self._assignments.finished(peer, report, (), None)
        elif peer.row.role == "worker" and event.group is not None:
            self._assignments.score(peer.name, GroupScore(event.group, error=event.reason))
        self._answer(event, Refused(event.reason))

    def _answer(self, event: FromPeer | Stored | Unreadable, refusal: Refused | None) -> None:
        if refusal is not None:
            self.state.send(event.peer, Refused(refusal.reason, event.seq))
        elif event.seq > 0:
            self.state.send(event.peer, Ack([event.seq]))

    # ---- by message ----

    def _dispatch(self, peer: Peer, event: FromPeer | Stored, now: float) -> Refused | None:
        match event.message:
            case Heartbeat():
                self.state.send(peer.connection, Heartbeat())
            case Capacity() as message:
                permits = measured(message.permits)
                peer.capacity, peer.permits = message.episodes, permits
                self.state.pacer.permits(permits)
                self._parts.figures.permits(permits)
            case Finished():
                return self._finished(peer, event)
            case Snapshot():
                pass  # kept by the shell, or not worth it
            case GroupScore() as message:
                self._assignments.score(peer.name, message)
            case LeaseRequest() as message:
                self._parts.pushes.question(peer, message)
                return self._leases.request(peer, message.number, now)
            case Fetch() as message:
                self.state.emit(ReadRows(event.peer, message))
            case Stepped() as message:
                return self._leases.step(message, peer.row.epoch)
            case MayPush() as message:
                self._parts.pushes.question(peer, message)
                self._parts.pushes.request(peer, message.version, now)
            case AnnounceVersion() as message:
                return self._leases.announce(message.row)
            case PushDone() as message:
                return self._published(message, now)
            case EvalWeightsSaved(row):
                self.state.notify("eval_weights", version=row.version, iteration=row.iteration)
            case Retire() as message:
                return self._leases.retire(message.through, peer.row.epoch)
            case other:
                return self._from_driver(other)
        return None

    def _from_driver(self, message: Message) -> Refused | None:
        match message:
            case Tasks():
                self._parts.minter.offer(message)
            case Evaluate():
                return self._evaluate(message)
            case PeerLost():
                self._parts.sessions.ended(message.name, message.incarnation)
                self._ended(message)
            case Republish():
                self._parts.pushes.asked_for(message)
            case Barrier():
                self.state.notify("echo", id=message.id)
            case Drain():
                if self._parts.draining is None:
                    self._parts.draining = message.reason
                    self._parts.is_pausing = message.resumable
                    if not message.resumable:
                        self._assignments.close_all(message.reason)
                    self._assignments.stop_playing()
                self._parts.drained_due = True
            case _:  # an Ack would say that it was taken
                return Refused(f"the buffer has no use for a {type(message).__name__}")
        return None

    def _evaluate(self, message: Evaluate) -> Refused | None:
        """In a run that drains, whoever waits for it is answered and not refused."""
        refusal = self._assignments.evaluations.begin(message)
        if self._parts.draining is not None:
            self._assignments.evaluations.cancel()
        return refusal

    def _ended(self, lost: PeerLost) -> None:
        """A process has ended. Where it is a learner that did so by itself, its lease may be why;
        of any other the driver is told which lease it was in."""
        epoch = self.peers.epoch_of(lost.name, lost.incarnation)
        if epoch is None:
            return
        kind = "lease_failed" if lost.failed else "lease_left"
        lease = self._leases.ended(epoch) if lost.failed else self._leases.left(epoch)
        if lease is not None:
            self.state.notify(kind, **msgspec.structs.asdict(lease))

    def _published(self, message: PushDone, now: float) -> Refused | None:
        before = self.state.published_version
        refusal = self._leases.publish(message)
        if self.state.published_version != before:
            self._unpark(now)
        return refusal

    # ---- reports ----

    def _finished(self, peer: Peer, event: FromPeer | Stored) -> Refused | None:
        assert isinstance(event.message, Finished)
        report = event.message.report
        if isinstance(event, FromPeer):
            return self._assignments.finished(peer, report, (), None)
        for payload in event.payloads:
            self.state.accept(payload)
        return self._assignments.finished(peer, report, event.payloads, event.defect)

    def _played_by(self, peer: Peer, id: EpisodeId) -> EpisodeRow | None:
        """The ledger's row of this very attempt, if this peer plays it."""
        row = self.state.find_episode(id)
        is_played = row is not None and row.worker == peer.name and kind_of(row.mint) == "train"
        return row if is_played else None

    def _expects(self, peer: Peer, id: EpisodeId) -> bool:
        return self._played_by(peer, id) is not None and not self._assignments.is_parked(id)

    def _must_come_again(self, peer: Peer, event: FromPeer | Stored, now: float) -> bool:
        """A report that is left unanswered: it names a version to come, or is wanted and came
        without its columns."""
        if not isinstance(event.message, Finished):
            return False
        id = event.message.report.id
        if self._assignments.is_parked(id):
            return True
        if isinstance(event, FromPeer):
            return self.wants(event)
        return self._expects(peer, id) and self._assignments.park(event, now)

    def _unpark(self, now: float) -> None:
        """Take the reports that need wait no longer."""
        for event in self._assignments.unpark(now):
            peer = self.peers.sender(event.epoch)
            if peer is not None:
                self._answer(event, self._finished(peer, event))


def _forbidden(role: Role, message: Message) -> Refused | None:
    name = type(message).__name__
    if message.sender == "buffer":
        return Refused(f"the buffer takes no {name}")
    if message.sender not in ("any", role):
        return Refused(f"a {role} may not send {name}")
    return None
