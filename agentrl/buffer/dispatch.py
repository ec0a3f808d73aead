"""Who may say what, and which desk hears it.

Every message of a peer is answered by Ack or Refused, but for reports that cannot be taken yet: one
names a version to come, or came without its columns.
"""

import msgspec

from agentrl.buffer.desks import Desks
from agentrl.buffer.events import FromPeer, ReadRows, Stored, Unreadable
from agentrl.buffer.numbers import measured
from agentrl.buffer.peers import Peer
from agentrl.types import EpisodeReport, LeaseHeader, Outcome, StopReason
from agentrl.wire.messages import (
    Ack,
    Capacity,
    Drain,
    Echo,
    Evaluate,
    Fetch,
    Finished,
    Heartbeat,
    Hello,
    Lease,
    LeaseRequest,
    Message,
    NewWeights,
    PeerLost,
    Published,
    Publishing,
    PushRequest,
    Refused,
    Republish,
    Retire,
    Role,
    Snapshot,
    Stepped,
    Tasks,
    Verdict,
)

__all__ = ["Dispatch"]

_SENDER: dict[type, Role | None] = {
    Heartbeat: None,
    Capacity: "worker",
    Finished: "worker",
    Snapshot: "worker",
    Verdict: "worker",
    LeaseRequest: "learner",
    Fetch: "learner",
    Stepped: "learner",
    PushRequest: "learner",
    Publishing: "learner",
    Published: "learner",
    Retire: "learner",
    Tasks: "driver",
    Evaluate: "driver",
    PeerLost: "driver",
    Republish: "driver",
    Echo: "driver",
    Drain: "driver",
}


class Dispatch:
    """Takes what peers say to the desks of a core, and answers."""

    def __init__(self, desks: Desks) -> None:
        self._desks = desks
        self._state = desks.state
        self._peers = desks.peers
        self._claims = desks.claims
        self._leases = desks.leases

    def wants(self, event: FromPeer) -> bool:
        """Whether the columns of this Finished are worth storing: its sender is current and the
        ledger waits for this very attempt."""
        peer = self._peers.sender(event.epoch)
        if peer is None or not isinstance(event.message, Finished):
            return False
        report = event.message.report
        return report.outcome is Outcome.DONE and self._claims.expects(peer, report.id)

    def snapshot_of(self, event: FromPeer) -> tuple[int, int] | None:
        """The episode of a Snapshot that is worth keeping: its sender plays this very attempt."""
        if not isinstance(event.message, Snapshot):
            return None
        peer = self._peers.sender(event.epoch)
        if peer is None:
            return None
        row = self._state.find_episode(event.message.id)
        is_played = row is not None and row.worker == peer.name and row.outcome is None
        return (row.mint, row.index) if row is not None and is_played else None

    def take(self, event: FromPeer | Stored, now: float) -> None:
        """Hear a message, if its sender may say it."""
        if isinstance(event.message, Hello):
            self._desks.reception.hello(event.peer, event.message, now)
            self._answer(event, None)
            return
        peer = self._peers.sender(event.epoch)
        if peer is None:
            self._desks.reception.stranger(event.peer, event.epoch, event.seq)
            return
        self._desks.reception.seen(peer, event.peer, now)
        if self._must_come_again(peer, event, now):
            return
        name = type(event.message).__name__
        if _SENDER.get(type(event.message), peer.row.role) not in (None, peer.row.role):
            self._answer(event, f"a {peer.row.role} may not send {name}")
        elif type(event.message) not in _SENDER:
            self._answer(event, f"the buffer takes no {name}")
        else:
            self._answer(event, self._dispatch(peer, event, now))

    def refuse(self, event: Unreadable, now: float) -> None:
        """Sending it again would change nothing, so it is refused, and what it was to settle is
        settled: an episode as poison, a group as one whose judge failed."""
        peer = self._peers.sender(event.epoch)
        if peer is None:
            if not self._desks.reception.stranger(event.peer, event.epoch, event.seq):
                self._answer(event, event.reason)
            return
        self._desks.reception.seen(peer, event.peer, now)
        if peer.row.role == "worker" and event.episode is not None:
            outcome, stop = Outcome.POISON, StopReason.ERROR
            report = EpisodeReport(event.episode, outcome, stop, [], error=event.reason)
            self._claims.finished(peer, report, (), None)
        elif peer.row.role == "worker" and event.group is not None:
            self._claims.verdict(peer.name, Verdict(event.group, error=event.reason))
        self._answer(event, event.reason)

    def unpark(self, now: float) -> None:
        """Take the reports that need wait no longer."""
        for event in self._claims.unpark(now):
            peer = self._peers.sender(event.epoch)
            if peer is not None:
                self._answer(event, self._finished(peer, event))

    # ---- by message ----

    def _dispatch(self, peer: Peer, event: FromPeer | Stored, now: float) -> str | None:
        match event.message:
            case Heartbeat():
                self._state.send(peer.connection, Heartbeat())
            case Capacity() as message:
                permits = measured(message.permits)
                peer.capacity, peer.permits = message.episodes, permits
                self._state.pacer.permits(permits)
                self._desks.figures.permits(permits)
            case Finished():
                return self._finished(peer, event)
            case Snapshot():
                pass  # kept by the shell, or not worth it
            case Verdict() as message:
                self._claims.verdict(peer.name, message)
            case LeaseRequest() as message:
                self._desks.pushes.question(peer, message)
                return self._lease_request(peer, message.number, now)
            case Fetch() as message:
                self._state.emit(ReadRows(event.peer, message))
            case Stepped() as message:
                return self._stepped(peer, message)
            case PushRequest() as message:
                self._desks.pushes.question(peer, message)
                self._desks.pushes.request(peer, message.version, now)
            case Publishing() as message:
                return self._publishing(message)
            case Published() as message:
                return self._published(message, now)
            case Retire() as message:
                answer = self._leases.retire(message.through, peer.row.epoch)
                return answer if isinstance(answer, str) else None
            case other:
                return self._from_driver(other)
        return None

    def _from_driver(self, message: Message) -> str | None:
        match message:
            case Tasks():
                self._desks.minter.offer(message)
            case Evaluate():
                is_draining = self._desks.draining is not None
                return self._claims.evaluate(message, is_draining=is_draining)
            case PeerLost():
                self._desks.reception.ended(message.name, message.incarnation)
                if message.failed:
                    self._failed(message)
            case Republish():
                self._desks.pushes.asked_for(message)
            case Echo():
                self._state.notify("echo", id=message.id)
            case Drain():
                if self._desks.draining is None:
                    self._desks.draining = message.reason
                    self._desks.is_pausing = message.resumable
                    if not message.resumable:
                        self._claims.close_all(message.reason)
                    self._claims.stop_playing()
                self._desks.drained_due = True
        return None

    def _answer(self, event: FromPeer | Stored | Unreadable, refusal: str | None) -> None:
        if refusal is not None:
            self._state.send(event.peer, Refused(refusal, event.seq))
        elif event.seq > 0:
            self._state.send(event.peer, Ack([event.seq]))

    def _finished(self, peer: Peer, event: FromPeer | Stored) -> str | None:
        assert isinstance(event.message, Finished)
        report = event.message.report
        if isinstance(event, Stored):
            for payload in event.payloads:
                self._state.accept(payload)
            return self._claims.finished(peer, report, event.payloads, event.defect)
        return self._claims.finished(peer, report, (), None)

    # ---- the learner ----

    def _lease_request(self, learner: Peer, number: int, now: float) -> str | None:
        answer = self._leases.request(learner, number, now)
        if isinstance(answer, LeaseHeader):
            self._state.send(learner.connection, Lease(answer))
        return answer if isinstance(answer, str) else None

    def _stepped(self, learner: Peer, message: Stepped) -> str | None:
        answer = self._leases.step(message, learner.row.epoch)
        if answer is True:
            self._state.notify(
                "step",
                number=message.number,
                skipped=message.skipped,
                old_share=message.old_share,
                wait_s=message.wait_s,
                iteration_s=message.iteration_s,
                metrics=message.metrics,
                buffer=self._desks.figures.now(),
            )
            self._desks.figures.stepped()
        return answer if isinstance(answer, str) else None

    def _failed(self, lost: PeerLost) -> None:
        """A process has ended by itself; where it is a learner, its lease may be why."""
        epoch = self._peers.epoch_of(lost.name, lost.incarnation)
        failed = None if epoch is None else self._leases.ended(epoch)
        if failed is not None:
            self._state.notify("lease_failed", **msgspec.structs.asdict(failed))

    def _publishing(self, message: Publishing) -> str | None:
        refusal = self._leases.announce(message.row)
        if refusal is None:
            self._state.notify("publishing", version=message.row.version)
        return refusal

    def _published(self, message: Published, now: float) -> str | None:
        answer = self._leases.publish(message)
        if answer is True:
            row = message.row
            self._state.notify(
                "published",
                version=row.version,
                parent=row.parent,
                iteration=row.iteration,
                through=message.through,
                metrics=message.metrics,
            )
            if not self._desks.settings.partial_rollout:
                for worker in self._peers.workers():
                    self._state.send(worker.connection, NewWeights(row.version))
            self.unpark(now)
        return answer if isinstance(answer, str) else None

    # ---- reports that cannot be taken yet ----

    def _must_come_again(self, peer: Peer, event: FromPeer | Stored, now: float) -> bool:
        """A report that is left unanswered: it names a version to come, or is wanted and came
        without its columns."""
        if not isinstance(event.message, Finished):
            return False
        id = event.message.report.id
        if self._claims.is_parked(id):
            return True
        if isinstance(event, FromPeer):
            return self.wants(event)
        return self._claims.expects(peer, id) and self._claims.park(event, now)
