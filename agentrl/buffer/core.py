"""`BufferCore`: the buffer as a pure state machine, `handle(event, now) -> effects`.

It owns no socket, disk or clock. Every message of a peer is answered by Ack or Refused after its
rows are durable; every rule is idempotent, so a message that arrives twice changes nothing.
What the rules are is said in `groups`, `episodes`, `claims`, `leases`, `minting` and `admission`,
what the driver hears of it all in `news`;
here is who may say what, and what happens after each event:

    judge orders -> lease -> failures, fates, freed segments -> mint -> assign -> credit
        -> no more leases -> stuck, drained
"""

from agentrl.buffer import admission
from agentrl.buffer.claims import ClaimDesk
from agentrl.buffer.episodes import assign
from agentrl.buffer.events import Effect, FromPeer, Input, ReadRows, Stored, Tick, Unreadable
from agentrl.buffer.leases import LeaseDesk
from agentrl.buffer.minting import Minter
from agentrl.buffer.news import News
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.reception import Reception
from agentrl.buffer.rows import LedgerState
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.state import State
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
    NoMoreLeases,
    PeerLost,
    Published,
    Refused,
    Retire,
    Role,
    Stepped,
    Tasks,
    Verdict,
)

__all__ = ["BufferCore"]

MAX_EVALUATIONS = 16

_SENDER: dict[type, Role | None] = {
    Heartbeat: None,
    Capacity: "worker",
    Finished: "worker",
    Verdict: "worker",
    LeaseRequest: "learner",
    Fetch: "learner",
    Stepped: "learner",
    Published: "learner",
    Retire: "learner",
    Tasks: "driver",
    Evaluate: "driver",
    PeerLost: "driver",
    Echo: "driver",
    Drain: "driver",
}


class BufferCore:
    """Built from an empty ledger or a restored one; `now` is in seconds of a monotonic clock."""

    def __init__(
        self, settings: BufferSettings, ledger: LedgerState | None = None, now: float = 0.0
    ) -> None:
        ledger = ledger or LedgerState()
        self.settings = settings
        self.state = State(settings, ledger)
        self.peers = Peers(ledger.peers, now)
        self.claims = ClaimDesk(self.state, self.peers)
        self.leases = LeaseDesk(self.state)
        self.minter = Minter(self.state)
        self.reception = Reception(self.state, self.peers, self.claims, self.leases, self.minter)
        self.draining: str | None = None
        self.is_pausing = False
        self.news = News(self.state, self.claims.attempts)
        self._drained_due = False

    def handle(self, event: Input, now: float) -> list[Effect]:
        """Take one event; the effects are to be carried out in the order of `events`."""
        if isinstance(event, Tick):
            self.reception.lose_silent(now)
            self._unpark(now)
        elif isinstance(event, Unreadable):
            self._refuse_unreadable(event, now)
        else:
            self._take(event, now)
        self._pump(now)
        return self.state.take_effects()

    def wants(self, event: FromPeer) -> bool:
        """Whether the columns of this Finished are worth storing: its sender is current and the
        ledger waits for this very attempt."""
        peer = self.peers.sender(event.epoch)
        if peer is None or not isinstance(event.message, Finished):
            return False
        report = event.message.report
        return report.outcome is Outcome.DONE and self.claims.expects(peer, report.id)

    def driver(self) -> str | None:
        """The driver's connection, if it is there."""
        driver = self.peers.driver()
        return None if driver is None else driver.connection

    def charged_room(self) -> int:
        """Groups that may be minted now."""
        return self._room(self.state.store_bytes)

    def _room(self, store_bytes: int) -> int:
        """Groups that could be minted now if the store held so much."""
        if self.draining is not None:
            return 0
        state = self.state
        return admission.headroom(
            self.settings,
            charged=state.charged,
            unleased=len(state.unleased),
            leases=state.last_lease,
            cap=state.pacer.cap,
            store_bytes=store_bytes,
        )

    def stats(self) -> dict[str, float]:
        """The buffer's own figures now."""
        state = self.state
        workers = self.peers.workers()
        return {
            "ready": len(state.ready),
            "charged": state.charged,
            "running": sum(len(worker.held) for worker in workers),
            "queued": len(self.claims.queue),
            "cap": state.pacer.row.cap,
            "old_share": state.pacer.row.old_share,
            "store_bytes": state.store_bytes,
            "sampled_tokens": self.claims.sampled_tokens,
            "workers": len(workers),
            **self.claims.attempts.figures(),
        }

    # ---- messages ----

    def _take(self, event: FromPeer | Stored, now: float) -> None:
        if isinstance(event.message, Hello):
            self.reception.hello(event.peer, event.message, now)
            self._answer(event, None)
            return
        peer = self.peers.sender(event.epoch)
        if peer is None:
            self.reception.stranger(event.peer, event.epoch, event.seq)
            return
        self.reception.seen(peer, event.peer, now)
        if self._must_come_again(peer, event, now):
            return
        name = type(event.message).__name__
        if _SENDER.get(type(event.message), peer.row.role) not in (None, peer.row.role):
            self._answer(event, f"a {peer.row.role} may not send {name}")
        elif type(event.message) not in _SENDER:
            self._answer(event, f"the buffer takes no {name}")
        else:
            self._answer(event, self._dispatch(peer, event, now))

    def _dispatch(self, peer: Peer, event: FromPeer | Stored, now: float) -> str | None:
        match event.message:
            case Heartbeat():
                self.state.send(peer.connection, Heartbeat())
            case Capacity() as message:
                peer.capacity = message.episodes
                self.state.pacer.permits(message.permits)
            case Finished():
                return self._finished(peer, event)
            case Verdict() as message:
                self.claims.verdict(message)
            case LeaseRequest() as message:
                return self._lease_request(peer, message.number, now)
            case Fetch() as message:
                self.state.emit(ReadRows(event.peer, message))
            case Stepped() as message:
                return self._stepped(peer, message)
            case Published() as message:
                return self._published(message, now)
            case Retire() as message:
                answer = self.leases.retire(message.through, peer.row.epoch)
                return answer if isinstance(answer, str) else None
            case other:
                return self._from_driver(other)
        return None

    def _from_driver(self, message: Message) -> str | None:
        match message:
            case Tasks():
                self.minter.offer(message)
            case Evaluate():
                return self._evaluate(message)
            case PeerLost():
                self.reception.ended(message.name)
            case Echo():
                self.state.notify("echo", id=message.id)
            case Drain():
                if self.draining is None:
                    self.draining = message.reason
                    self.is_pausing = message.resumable
                    if not message.resumable:
                        self.claims.close_all(message.reason)
                    self.claims.stop_playing()
                self._drained_due = True
        return None

    def _answer(self, event: FromPeer | Stored | Unreadable, refusal: str | None) -> None:
        if refusal is not None:
            self.state.send(event.peer, Refused(refusal, event.seq))
        elif event.seq > 0:
            self.state.send(event.peer, Ack([event.seq]))

    def _refuse_unreadable(self, event: Unreadable, now: float) -> None:
        """Sending it again would change nothing, so it is refused, and what it was to settle is
        settled: an episode as poison, a group as one whose judge failed."""
        peer = self.peers.sender(event.epoch)
        if peer is None:
            if not self.reception.stranger(event.peer, event.epoch, event.seq):
                self._answer(event, event.reason)
            return
        self.reception.seen(peer, event.peer, now)
        if peer.row.role == "worker" and event.episode is not None:
            outcome, stop = Outcome.POISON, StopReason.ERROR
            report = EpisodeReport(event.episode, outcome, stop, [], error=event.reason)
            self.claims.finished(peer, report, (), None)
        elif peer.row.role == "worker" and event.group is not None:
            self.claims.verdict(Verdict(event.group, error=event.reason))
        self._answer(event, event.reason)

    def _finished(self, peer: Peer, event: FromPeer | Stored) -> str | None:
        assert isinstance(event.message, Finished)
        report = event.message.report
        if isinstance(event, Stored):
            for payload in event.payloads:
                self.state.accept(payload)
            return self.claims.finished(peer, report, event.payloads, event.defect)
        return self.claims.finished(peer, report, (), None)

    def _evaluate(self, message: Evaluate) -> str | None:
        evaluations = self.claims.evaluations
        if evaluations.num_running >= MAX_EVALUATIONS:
            return f"{MAX_EVALUATIONS} evaluations are running: wait for one to end"
        ended = evaluations.request(message)
        results = [ended] if ended is not None else []
        if self.draining is not None:  # whoever waits for it is answered, not refused
            results += evaluations.cancel()
        for result in results:
            self.state.notify("evaluation", **result)
        return None

    # ---- the learner ----

    def _lease_request(self, learner: Peer, number: int, now: float) -> str | None:
        answer = self.leases.request(learner, number, now)
        if isinstance(answer, LeaseHeader):
            self.state.send(learner.connection, Lease(answer))
        return answer if isinstance(answer, str) else None

    def _stepped(self, learner: Peer, message: Stepped) -> str | None:
        answer = self.leases.step(message, learner.row.epoch)
        if answer is True:
            self.state.notify(
                "step",
                number=message.number,
                skipped=message.skipped,
                old_share=message.old_share,
                wait_s=message.wait_s,
                iteration_s=message.iteration_s,
                metrics=message.metrics,
                buffer=self.stats(),
            )
        return answer if isinstance(answer, str) else None

    def _published(self, message: Published, now: float) -> str | None:
        answer = self.leases.publish(message)
        if answer is True:
            row = message.row
            self.state.notify(
                "published",
                version=row.version,
                parent=row.parent,
                iteration=row.iteration,
                through=message.through,
                metrics=message.metrics,
            )
            self._unpark(now)
        return answer if isinstance(answer, str) else None

    # ---- reports that cannot be taken yet ----

    def _must_come_again(self, peer: Peer, event: FromPeer | Stored, now: float) -> bool:
        """A report that is left unanswered: it names a version to come, or is wanted and came
        without its columns."""
        if not isinstance(event.message, Finished):
            return False
        id = event.message.report.id
        if self.claims.is_parked(id):
            return True
        if isinstance(event, FromPeer):
            return self.wants(event)
        return self.claims.expects(peer, id) and self.claims.park(event, now)

    def _unpark(self, now: float) -> None:
        for event in self.claims.unpark(now):
            peer = self.peers.sender(event.epoch)
            if peer is not None:
                self._answer(event, self._finished(peer, event))

    # ---- after each event ----

    def _pump(self, now: float) -> None:
        state = self.state
        self.claims.judges.order(self.peers)
        minting_ended = self.draining is not None or self.minter.exhausted
        # A run that will be continued gives no short lease, and does not say that it was the last.
        waiting = None if self.is_pausing else self.leases.waiting
        lease = self.leases.fill(now, minting_ended, self.stats) if waiting else None
        if waiting is not None and lease is not None:
            self._push(waiting.learner, lease)
        self.news.failures()
        if self.news.fates():
            state.sweep_segments()
        self.news.store()
        room = self.charged_room()
        for mint in self.minter.mint(room):
            for index in range(self.settings.n_samples_per_prompt):
                self.claims.queue.push(mint, index)
        assign(state, self.claims.queue, self.claims.evaluations, self.peers)
        self._give_credit()
        self._end(minting_ended)
        if self.leases.waiting is not None and not minting_ended:
            self.news.stuck(self._room(0))
        if self._drained_due:
            self._drained_due = False
            self.news.drained()

    def _push(self, learner: str, lease: LeaseHeader) -> None:
        peer = self.peers.named(learner)
        self.state.send(None if peer is None else peer.connection, Lease(lease))
        self.state.notify(
            "lease",
            number=lease.number,
            groups=len(lease.groups),
            last=lease.last,
            stats=lease.stats,
        )

    def _give_credit(self) -> None:
        driver = self.driver()
        credit = self.minter.credit(self.charged_room()) if driver is not None else None
        if credit is not None:
            self.state.send(driver, credit)

    def _end(self, minting_ended: bool) -> None:
        waiting = None if self.is_pausing else self.leases.waiting
        reason = self.leases.ended(minting_ended) if waiting is not None else None
        if waiting is None or reason is None:
            return
        peer = self.peers.named(waiting.learner)
        message = NoMoreLeases(self.state.last_lease, self.draining or reason)
        self.state.send(None if peer is None else peer.connection, message)
        self.leases.waiting = None
