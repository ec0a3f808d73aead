"""What workers hold: their reports, their loss, their return.

    queued -> claimed(worker, attempt) -> finished
                 |  infrastructure failed: attempt + 1, queued again
                 |  worker lost: the same, counted against the one episode that took it down
                 |  never reached the worker, or the run is interrupted: attempt + 1, nothing
                 |  counted against it

A report counts only from the worker that holds this very attempt. One that names a version nobody
has announced yet waits for the announcement, unacknowledged.
"""

from collections.abc import Collection

import msgspec
from msgspec.structs import asdict

from agentrl.buffer import groups
from agentrl.buffer.attempts import Attempts
from agentrl.buffer.episodes import EpisodeQueue
from agentrl.buffer.evaluations import Evaluations
from agentrl.buffer.events import Stored
from agentrl.buffer.group_scoring import GroupScoring
from agentrl.buffer.ids import GroupKind, kind_of, mint_of
from agentrl.buffer.numbers import (
    num_sampled,
    report_defect,
    versions_of,
    with_time,
    without_numbers,
)
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.rows import EpisodeRow, StoredTrajectory
from agentrl.buffer.scored import scored_group
from agentrl.buffer.state import State
from agentrl.buffer.suspects import Suspects
from agentrl.types import EpisodeId, EpisodeReport, Fate, Outcome, PayloadRef, StopReason
from agentrl.wire.messages import Cancel, GroupScore, Refused

__all__ = ["Assignments"]


class Assignments:
    """Claims of all workers, training and evaluation. `sampled_tokens` counts what engines sampled
    for every report that was taken, since this process began."""

    def __init__(self, state: State, peers: Peers) -> None:
        self._state = state
        self._peers = peers
        self.suspects = Suspects()
        self.queues: dict[GroupKind, EpisodeQueue] = {
            "train": EpisodeQueue("train", state, self.suspects),
            "eval": EpisodeQueue("eval", state, self.suspects),
        }
        self.attempts = Attempts()
        self.evaluations = Evaluations(state, self.queues["eval"])
        self.scoring = GroupScoring(state, self.suspects)
        self.sampled_tokens = 0
        self._parked: dict[EpisodeId, tuple[Stored, float]] = {}
        for row in state.episodes.values():
            holder = peers.named(row.worker)
            if holder is not None and row.outcome is None:
                holder.held.add(state.episode_id(row))

    # ---- reports ----

    @property
    def num_parked(self) -> int:
        """Reports that wait for the announcement of a version."""
        return len(self._parked)

    def is_parked(self, id: EpisodeId) -> bool:
        return id in self._parked

    def park(self, event: Stored, now: float) -> bool:
        """Hold a report back if it names a version that may still be announced."""
        is_early = event.defect is None and self._is_early(event)
        if is_early:
            self._parked[event.message.report.id] = (event, now)
        return is_early

    def unpark(self, now: float) -> list[Stored]:
        """The reports that need wait no longer, oldest first."""
        patience = now - self._state.settings.publish_grace_s
        parked = self._parked.items()
        free = [id for id, (e, since) in parked if since <= patience or not self._is_early(e)]
        return [self._parked.pop(id)[0] for id in free]

    def finished(
        self,
        worker: Peer,
        report: EpisodeReport,
        payloads: tuple[PayloadRef, ...],
        defect: str | None,
    ) -> Refused | None:
        """Take a report; one that is refused is taken as poison."""
        worker.held.discard(report.id)
        self.suspects.cleared(report.id)
        report, numbers = with_time(report), report_defect(report)
        if numbers is not None:
            report = without_numbers(report)
        row = self._state.find_episode(report.id)
        if row is None or row.worker != worker.name:
            return None
        is_eval, refusal = kind_of(row.mint) == "eval", None
        if report.outcome is Outcome.DONE:
            why = defect or numbers or (None if is_eval else self._training_defect(report))
            if why is not None:
                refusal = Refused(f"episode {report.id} refused: {why}")
                report = _poisoned(report, refusal.reason)
        if refusal is None:
            self.sampled_tokens += num_sampled(report)
        stored: tuple[StoredTrajectory, ...] = ()
        if report.outcome is Outcome.DONE and not is_eval:
            pairs = zip(report.trajectories, payloads, strict=True)
            stored = tuple(StoredTrajectory(meta, payload) for meta, payload in pairs)
        ended = groups.record(self._state, row, report, stored)
        given_up = report.stop_reason is StopReason.GIVEN_UP
        self._count(worker, row, report.outcome, report.error, again=not ended, given_up=given_up)
        self.evaluations.num_reported += is_eval
        self._after(row, ended, report if report.outcome is Outcome.DONE else None)
        return refusal

    def score(self, worker: str, score: GroupScore) -> None:
        """Take a score; one that nobody waits for changes nothing. One that cannot be used is
        told to the driver."""
        mint = mint_of(score.group)
        if mint is None or not groups.needs_judge(self._state, mint):
            return
        tells = self._state.settings.tells_judged
        order = groups.scoring_order(self._state, mint) if tells else None  # as long as it is there
        defect = groups.take_score(self._state, mint, score)
        if defect is not None:
            facts = {"group": score.group, "worker": worker, "error": defect}
            self._state.notify("scoring_failed", **facts)
        elif order is not None:
            self._state.notify("scored", **asdict(scored_group(mint, order, score)))
        self.scoring.settle(mint, self._peers)

    # ---- workers come and go ----

    def may_have(self, worker: Peer, id: EpisodeId) -> bool:
        """Whether an episode may be given to this worker, in view of who is suspected."""
        if id not in self.suspects:
            return True
        alone = not self.scoring.is_suspected(worker)
        return alone and self.suspects.may_join(id, worker.held)

    def lose(self, worker: Peer) -> None:
        """Take everything away from a worker and queue it again."""
        held = sorted(worker.held)
        worker.held.clear()
        charges = self.suspects.lost(held)
        for id in held:
            self._parked.pop(id, None)
            self._lose_one(worker, id, charges.get(id, 0))
        if held:
            self._state.send(worker.connection, Cancel(held))
        self.scoring.lose(worker)

    def reconcile(self, worker: Peer, running: list[EpisodeId]) -> None:
        """The same process is back: it keeps what it still plays, nothing else."""
        missing = worker.held - set(running)
        unknown = set(running) - worker.held
        worker.held -= missing
        for id in sorted(missing):
            self._parked.pop(id, None)
            self._unplace(worker, id)
        if missing or unknown:
            self._state.send(worker.connection, Cancel(sorted(missing | unknown)))
        self.scoring.repeat(worker)

    def close_all(self, reason: str) -> None:
        """Every group that is not leased gets the fate cancelled."""
        for mint in sorted(self._state.unleased):
            groups.close(self._state, mint, Fate.CANCELLED, reason)
            self.scoring.settle(mint, self._peers)

    def cut(self, mints: Collection[int], fate: Fate, reason: str) -> None:
        """These groups end before their time, and whoever plays an episode of one stops."""
        for worker in self._peers:
            held = sorted(id for id in worker.held if mint_of(id.group) in mints)
            worker.held -= set(held)
            for id in held:
                self._parked.pop(id, None)
                self.suspects.cleared(id)
            if held:
                self._state.send(worker.connection, Cancel(held))
        for mint in sorted(mints):
            groups.close(self._state, mint, fate, reason)
            self.scoring.settle(mint, self._peers)

    def stop_playing(self) -> None:
        """Nothing is played any more, evaluations neither. That is no failure of an episode whose
        group is still open: another program plays it."""
        self.evaluations.cancel()
        self._parked.clear()
        for worker in self._peers:
            if worker.held:
                self._state.send(worker.connection, Cancel(sorted(worker.held)))
                for id in sorted(worker.held):
                    self._unplace(worker, id)
                worker.held.clear()

    # ---- inside ----

    def _unplace(self, worker: Peer, id: EpisodeId) -> None:
        row = self._state.find_episode(id)
        if row is not None and row.worker == worker.name:
            groups.again(self._state, row, row.error)
            self._after(row, ended=False)

    def _lose_one(self, worker: Peer, id: EpisodeId, charge: int) -> None:
        """`charge`: losses that this episode is taken to be the cause of."""
        error = f"worker {worker.name} was lost"
        again = True
        row = self._state.find_episode(id)
        if row is None or row.worker != worker.name:
            return
        if charge:
            error = f"{error} with episode {id}, and with no other that was suspected"
            again = groups.retry(self._state, row, error, charge, Outcome.ENV_ERROR)
            self._count(worker, row, Outcome.ENV_ERROR, error, again=again)
            self._after(row, ended=not again)
        else:
            groups.again(self._state, row, error)
            self._after(row, ended=False)
        if charge:
            self.suspects.paid(id)
        if not again:
            self.suspects.forget()

    def _count(
        self,
        worker: Peer,
        row: EpisodeRow,
        outcome: Outcome,
        error: str | None,
        *,
        again: bool,
        given_up: bool = False,
    ) -> None:
        id, before = self._state.episode_id(row), row.num_failures
        self.attempts.ended(
            id, worker.name, outcome, error, before=before, again=again, given_up=given_up
        )

    def _after(self, row: EpisodeRow, ended: bool, done: EpisodeReport | None = None) -> None:
        kind = kind_of(row.mint)
        if not ended:
            self.queues[kind].push(row.mint, row.index)
        elif kind == "eval":
            self.evaluations.ended((row.mint, row.index), done)
        else:
            groups.conclude(self._state, row.mint)
            if groups.needs_judge(self._state, row.mint):
                self.scoring.add(row.mint)

    def _is_early(self, event: Stored) -> bool:
        """Whether a report names a version that nobody has announced yet."""
        newest = self._state.lineage.newest
        return max(versions_of(event.message.report), default=-1) > newest

    def _training_defect(self, report: EpisodeReport) -> str | None:
        if report.evaluated is not None:
            return "it is of evaluation sets, and the episode is one of training"
        unknown = sorted(v for v in versions_of(report) if v not in self._state.lineage)
        return f"tokens of unknown weight versions {unknown}" if unknown else None


def _poisoned(report: EpisodeReport, why: str) -> EpisodeReport:
    return msgspec.structs.replace(without_numbers(report), outcome=Outcome.POISON, error=why)
