"""Leases: N ready groups with the lowest mint numbers, numbered 1, 2, 3, ... and stepped in order.

    requested -> LEASED -> STEPPED -> (published) -> RETIRED
        ^         |  ^         |
        |         |  +---------+   a learner of a newer epoch asks again: recovery
        +---------+                it has ended LEASE_DEATHS learners: given up

A lease that exists is sent again as it was: same rows, same order. On recovery the leases from the
one asked for on are open again and their groups charged again. One that is given up does not exist
any more: its groups are poison, those of the leases after it are READY again, and its number is the
next to be made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.buffer import groups
from agentrl.buffer.figures import Figures
from agentrl.buffer.ids import group_id
from agentrl.buffer.peers import Peer, Peers
from agentrl.buffer.rows import EpisodeRow, LeaseRow
from agentrl.buffer.state import State
from agentrl.types import (
    Fate,
    GroupRows,
    GroupState,
    LeaseHeader,
    StopReason,
    TrajectoryRow,
    VersionRow,
)
from agentrl.wire.messages import (
    Lease,
    Message,
    NewWeights,
    NoMoreLeases,
    PushDone,
    Refused,
    Stepped,
)

__all__ = ["LEASE_DEATHS", "FailedLease", "Leases", "LeftLease", "header"]

#: Learners that a lease may end before it is given up.
LEASE_DEATHS = 3


@dataclass(slots=True, frozen=True)
class Waiting:
    """A request that waits for its lease."""

    learner: str
    number: int
    since: float


class LeftLease(msgspec.Struct, frozen=True):
    """A lease in which a learner ended; its groups and their tasks, in order."""

    number: int
    groups: list[str]
    tasks: list[str]


class FailedLease(LeftLease, frozen=True):
    """One that may be why: so many learners have ended in it by themselves."""

    deaths: int
    given_up: bool


class Leases:
    """Requests of the learner, and the rules of leases. What the learner says that contradicts them
    is refused and changes nothing."""

    def __init__(self, state: State, peers: Peers, figures: Figures) -> None:
        self._state = state
        self._peers = peers
        self._figures = figures
        self.waiting: Waiting | None = None

    # ---- requests ----

    def request(self, learner: Peer, number: int, now: float) -> Refused | None:
        """Send lease `number` if it exists, or let the learner wait for it.

        A learner asks for one lease after the other, so a request behind its last one is an old
        message that comes again.
        """
        state = self._state
        epoch = learner.row.epoch
        if state.marks.get("requested_by") == epoch and number < state.marks["requested_lease"]:
            return None
        if number <= state.retired_through:
            return Refused(
                f"lease {number} is covered by a durable checkpoint and its rows are gone:"
                f" ask for lease {state.retired_through + 1}"
            )
        if number > state.last_lease + 1:
            return Refused(f"lease {number} skips: ask for lease {state.last_lease + 1}")
        state.mark("requested_lease", number)
        state.mark("requested_by", epoch)
        if number > state.last_lease:
            if self.waiting is None or self.waiting.number != number:
                self.waiting = Waiting(learner.name, number, now)
            return None
        stepped_by = state.leases[number].stepped_by
        if stepped_by == epoch:
            return None
        if stepped_by:
            self._reopen(number)
        state.send(learner.connection, Lease(header(state, number)))
        return None

    def reconnected(self, learner: Peer, now: float) -> None:
        """What this learner asked for it may not have got: it has asked again."""
        marks = self._state.marks
        if marks.get("requested_by") == learner.row.epoch:
            self.request(learner, marks["requested_lease"], now)

    def replaced(self, learner: str) -> None:
        """A newer process took this learner's place; it asks for itself."""
        if self.waiting is not None and self.waiting.learner == learner:
            self.waiting = None

    # ---- new leases ----

    def fill(self, now: float, minting_ended: bool) -> bool:
        """Make and send the lease that is waited for, if enough groups are READY."""
        state, waiting = self._state, self.waiting
        if waiting is None or self._is_long_enough():
            return False
        wanted = state.settings.rollout_batch_size
        short = minting_ended and 0 < len(state.ready) == len(state.unleased)
        if len(state.ready) < wanted and not short:
            return False
        figures = self._figures.now()
        mints = tuple(sorted(state.ready)[:wanted])
        number = state.last_lease + 1
        wait_s = now - waiting.since
        drained = minting_ended and len(mints) == len(state.unleased)
        last = drained or number == state.settings.num_rollout
        self._pace(number, mints, wait_s, now)
        self._move(mints, GroupState.LEASED, lease=number)
        figures = figures | {"wait_s": wait_s}
        before = state.unmade.get(number)
        given_up = () if before is None else before.given_up
        row = LeaseRow(number=number, mints=mints, last=last, stats=figures, given_up=given_up)
        state.put(row)
        self._tell(waiting, Lease(header(state, number)))
        state.notify("lease", number=number, groups=len(mints), last=last, stats=figures)
        return True

    def end(self, minting_ended: bool, draining: str | None, spent: str | None) -> None:
        """Say so to a learner that waits for a lease that cannot come, and why: the run drains, or
        a budget is spent."""
        state, reason = self._state, None
        if self._is_long_enough():
            reason = f"the run has its {state.settings.num_rollout} rollout batches"
        elif minting_ended and not state.unleased:
            reason = spent or "no task is left"
        if self.waiting is not None and reason is not None:
            self._tell(self.waiting, NoMoreLeases(state.last_lease, draining or reason))

    # ---- the learner's progress ----

    def step(self, message: Stepped, epoch: int) -> Refused | None:
        """Lease consumed."""
        state, number = self._state, message.number
        if number > state.last_lease:
            return Refused(f"lease {number} was never given")
        if number <= state.retired_through or state.leases[number].stepped_by:
            return None
        earlier = state.leases.get(number - 1)
        if earlier is not None and not earlier.stepped_by:
            return Refused(f"lease {number} stepped before lease {number - 1}")
        self._mark_stepped(number, epoch, message.skipped)
        facts = msgspec.structs.asdict(message)
        if message.logged is None:
            del facts["logged"]
        state.notify("step", **facts, buffer=self._figures.now())
        self._figures.stepped()
        return None

    def ended(self, epoch: int) -> FailedLease | None:
        """The learner of this epoch ended by itself, with an error. None: not in a lease, or it is
        known."""
        lease, left = self._open_lease(epoch), self.left(epoch)
        if lease is None or left is None:
            return None
        state, deaths = self._state, len(lease.ended) + 1
        failed = FailedLease(
            **msgspec.structs.asdict(left), deaths=deaths, given_up=deaths >= LEASE_DEATHS
        )
        if failed.given_up:
            self._give_up(failed)
        else:
            state.put(msgspec.structs.replace(lease, ended=(*lease.ended, epoch)))
        return failed

    def left(self, epoch: int) -> LeftLease | None:
        """Which lease the learner of this epoch was in when somebody ended it; nothing changes.
        None: in none, or it ended by itself, and that is known."""
        if (lease := self._open_lease(epoch)) is None:
            return None
        groups_of = [self._state.groups[mint] for mint in lease.mints]
        return LeftLease(
            number=lease.number,
            groups=[group_id(group.mint) for group in groups_of],
            tasks=[group.task.id for group in groups_of],
        )

    def announce(self, row: VersionRow) -> Refused | None:
        """Weights that an engine may hold from now on. Should their push never end, they are a
        branch that the next learner's first version leaves behind."""
        refusal = self._add_version(row)
        if refusal is None:
            self._state.notify("publishing", version=row.version)
        return refusal

    def publish(self, message: PushDone) -> Refused | None:
        """New weights; a version that no engine holds needs no announcement."""
        state, row = self._state, message.row
        if row.version <= state.published_version and state.lineage.rows.get(row.version) == row:
            return None
        if message.through > state.last_lease:
            what = f"version {row.version} contains lease {message.through}"
            return Refused(f"{what}, which was never given")
        refusal = self._add_version(row)
        if refusal is not None:
            return refusal
        state.mark("published_version", row.version)
        state.mark("published_through", message.through)
        state.forget_leases()
        state.notify(
            "published",
            version=row.version,
            parent=row.parent,
            iteration=row.iteration,
            through=message.through,
            metrics=message.metrics,
        )
        if state.settings.tells_versions:
            for worker in self._peers.workers():
                state.send(worker.connection, NewWeights(row.version))
        return None

    def retire(self, through: int, epoch: int) -> Refused | None:
        """A durable checkpoint covers these leases: their fates are final."""
        state = self._state
        if through > state.last_lease:
            return Refused(f"lease {through} was never given")
        if through <= state.retired_through:
            return None
        for number in range(state.retired_through + 1, through + 1):
            if not state.leases[number].stepped_by:
                self._mark_stepped(number, epoch, skipped=False)
            lease = state.leases[number]
            fate = Fate.SKIPPED if lease.skipped else Fate.TRAINED
            self._move(lease.mints, GroupState.RETIRED, fate=fate)
        state.mark("retired_through", through)
        state.forget_leases()
        return None

    # ---- inside ----

    def _open_lease(self, epoch: int) -> LeaseRow | None:
        """What the learner of this epoch has asked for last, been given and not stepped, unless it
        is known to have ended in it."""
        marks = self._state.marks
        lease = self._state.leases.get(marks.get("requested_lease", 0))
        if lease is None or marks.get("requested_by") != epoch:
            return None
        return None if lease.stepped_by or epoch in lease.ended else lease

    def _tell(self, waiting: Waiting, message: Message) -> None:
        learner = self._peers.named(waiting.learner)
        self._state.send(None if learner is None else learner.connection, message)
        self.waiting = None

    def _add_version(self, row: VersionRow) -> Refused | None:
        lineage = self._state.lineage
        if lineage.rows.get(row.version) == row:
            return None
        refusal = lineage.refusal(row)
        if refusal is not None:
            return Refused(refusal)
        self._state.put(row)
        lineage.add(row)
        return None

    def _is_long_enough(self) -> bool:
        limit = self._state.settings.num_rollout
        return limit is not None and self._state.last_lease >= limit

    def _pace(self, number: int, mints: tuple[int, ...], wait_s: float, now: float) -> None:
        state = self._state
        bound = state.settings.max_staleness
        old = total = state.pacer.row.dropped_tokens
        for mint in mints:
            counts = state.sampled_tokens(mint)
            too_old = sum(n for v, n in counts.items() if state.lineage.age(v, number) > bound)
            groups.account(state, mint, trained=counts.total() - too_old)
            old += too_old
            total += counts.total()
        share = old / total if total else 0.0
        ready_left = len(state.ready) - len(mints)
        state.put(state.pacer.leased(number, share, wait_s, ready_left, now))

    def _mark_stepped(self, number: int, epoch: int, skipped: bool) -> None:
        state = self._state
        lease = state.leases[number]
        state.put(msgspec.structs.replace(lease, stepped_by=epoch, skipped=skipped, ended=()))
        self._move(lease.mints, GroupState.STEPPED)

    def _reopen(self, first: int) -> None:
        state = self._state
        for number in range(first, state.last_lease + 1):
            lease = state.leases[number]
            state.put(msgspec.structs.replace(lease, stepped_by=0, skipped=False))
            self._move(lease.mints, GroupState.LEASED)
        state.mark("published_through", min(state.published_through, first - 1))
        self.waiting = None

    def _give_up(self, failed: FailedLease) -> None:
        """No lease after it is stepped, for leases are stepped in order."""
        state = self._state
        reason = f"lease {failed.number} ended the learner {failed.deaths} times"
        for number in range(state.last_lease, failed.number - 1, -1):
            lease, given_up = state.leases[number], state.leases[number].given_up
            if number == failed.number:
                given_up += lease.mints
                end, fate = GroupState.RETIRED, Fate.POISON
                self._move(lease.mints, end, lease=None, fate=fate, reason=reason)
            else:
                self._move(lease.mints, GroupState.READY, lease=None)
            state.put(LeaseRow(number=number, mints=(), given_up=given_up))
        if any(row.iteration >= failed.number for row in state.lineage.rows.values()):
            state.mark("remade", state.marks.get("remade", 0) + 1)

    def _move(self, mints: Iterable[int], to: GroupState, **changes: Any) -> None:
        for mint in mints:
            row = msgspec.structs.replace(self._state.groups[mint], state=to, **changes)
            self._state.put(row)


def header(state: State, number: int) -> LeaseHeader:
    """The header of a lease that exists; always the same for the same number."""
    lease = state.leases[number]
    rows = [_group_rows(state, mint) for mint in lease.mints]
    return LeaseHeader(number=number, groups=rows, last=lease.last, stats=lease.stats)


def _group_rows(state: State, mint: int) -> GroupRows:
    group = state.groups[mint]
    done = state.done_episodes(mint)
    return GroupRows(
        group=group_id(mint),
        mint=mint,
        task=group.task.id,
        episodes=[state.episode_id(row) for row in done],
        rewards=list(group.rewards or ()),
        metrics=[row.metrics for row in done],
        trajectories=[line for row in done for line in _trajectory_rows(state, row)],
        stop_reasons=[row.stop_reason or StopReason.ERROR for row in done],
        facts=[row.facts for row in done],
        row=group.task.row if state.settings.tells_rows else {},
        part=group.task.part if state.settings.tells_rows else "",
    )


def _trajectory_rows(state: State, row: EpisodeRow) -> list[TrajectoryRow]:
    id = state.episode_id(row)
    return [TrajectoryRow(id, stored.meta, stored.payload) for stored in row.trajectories]
