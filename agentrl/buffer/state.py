"""`State`: the durable rows in memory, their indices, and the effects of the event in progress.

Every change of a row goes through `put`, but for `drop_answers`. Both write the row down as a
Persist effect, so what a restart reads back equals what was here; `put` keeps the indices true.

    group    MINTED -> READY -> LEASED -> STEPPED -> RETIRED       (any open state -> RETIRED)
    episode  queued -> claimed -> finished(outcome)                (claimed -> queued on a retry)
    segment  needed -> kept for reading -> let go                  (kept -> needed when written to)

RETIRED groups leave memory; their rows stay in the ledger. Groups of the kind eval are in memory
only: no row of theirs is written down, and they are neither minted, charged nor given a fate.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from agentrl.buffer.admission import Pacer
from agentrl.buffer.events import DropSegments, Effect, Notify, Persist, Send
from agentrl.buffer.ids import FIRST_EVAL, group_id, kind_of, mint_of
from agentrl.buffer.rows import (
    EpisodeRow,
    GroupRow,
    LeaseRow,
    LedgerState,
    Mark,
    Row,
    SegmentUse,
)
from agentrl.buffer.settings import BufferSettings
from agentrl.buffer.starvation import Starvation
from agentrl.lineage import Lineage
from agentrl.types import EpisodeId, Fate, GroupState, Outcome, PayloadRef
from agentrl.wire.messages import Evaluate, Event, Message

__all__ = ["EvalGroup", "State"]


class EvalGroup(msgspec.Struct, frozen=True):
    """A group of the kind eval: the episodes of one task of an evaluation."""

    order: Evaluate
    position: int

    @property
    def name(self) -> str:
        """Never that of a minted group."""
        return f"eval-{self.order.id}-{self.position}"


class State:
    """Rows by key, and counts kept beside them; `total_sampled_tokens`: of the whole run, in all
    trajectories that were ever taken. `leases` are those that exist, up to `last_lease`;
    `unmade` the rows of those after it that existed once. Since this process began, for those who
    watch: `reasons`, of the newest group of each fate; `num_too_long`: groups whose first prompt
    did not fit. `evals` are the groups of the kind eval, `eval_mints` their numbers by name."""

    def __init__(self, settings: BufferSettings, ledger: LedgerState) -> None:
        self.settings = settings
        self.groups: dict[int, GroupRow] = {}
        self.evals: dict[int, EvalGroup] = {}
        self.eval_mints: dict[str, int] = {}
        self._next_eval = FIRST_EVAL
        self.episodes: dict[tuple[int, int], EpisodeRow] = {}
        self.leases = {row.number: row for row in ledger.leases if row.mints}
        self.unmade = {row.number: row for row in ledger.leases if not row.mints}
        self.lineage = Lineage(ledger.versions)
        self.pacer = Pacer(settings, ledger.pacing)
        self.starvation = Starvation(settings.rollout_batch_size)
        self.marks: dict[str, int] = {mark.key: mark.value for mark in ledger.marks}
        self.fates: Counter[Fate] = Counter(ledger.fates)
        self.reasons: dict[Fate, str] = {}
        self.num_too_long = 0
        self.segments: dict[int, SegmentUse] = dict(ledger.segments)
        self._needed_bytes = sum(map(_needed, self.segments.values()))
        self.minted = ledger.minted
        self.cursor = ledger.cursor
        self.total_sampled_tokens = ledger.total_sampled_tokens
        self.last_lease = ledger.last_lease - len(self.unmade)
        self.unleased: set[int] = set()
        self.ready: set[int] = set()
        self._effects: list[Effect] = []
        for group in ledger.groups:
            self._index_group(group)
        for episode in ledger.episodes:
            self.episodes[episode.mint, episode.index] = episode
        self._let_go()

    # ---- effects ----

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, connection: str | None, message: Message) -> None:
        """Send, if the peer is connected at all; a peer that was away asks again by Hello."""
        if connection is not None:
            self.emit(Send(connection, message))

    def notify(self, kind: str, **data: object) -> None:
        self.emit(Notify(Event(kind, data)))

    def put(self, row: Row) -> None:
        """Write `row` down; groups, episodes and leases are also kept here."""
        is_volatile = isinstance(row, EpisodeRow) and kind_of(row.mint) == "eval"
        if not is_volatile:
            self.emit(Persist(row))
        if isinstance(row, GroupRow):
            self._put_group(row)
        elif isinstance(row, EpisodeRow):
            self.episodes[row.mint, row.index] = row
            for stored in row.trajectories:
                self._use(stored.payload, num_bytes=0, live=1)
                self.total_sampled_tokens += stored.meta.num_sampled
        elif isinstance(row, LeaseRow):
            self._put_lease(row)
        elif isinstance(row, Mark):
            self.marks[row.key] = row.value

    def drop_answers(self, mint: int) -> None:
        """No score of this open group comes any more, so nothing reads what its episodes said."""
        for row in self.group_episodes(mint):
            if row.answer:
                bare = msgspec.structs.replace(row, answer="")
                self.emit(Persist(bare))  # its trajectories are counted already
                self.episodes[mint, row.index] = bare

    def forget_leases(self) -> None:
        """Leases that are both retired and published are of no use to anyone."""
        through = min(self.published_through, self.retired_through)
        for number in [number for number in self.leases if number <= through]:
            del self.leases[number]

    def open_evals(self, order: Evaluate) -> range:
        """The groups of an evaluation, with their episodes; returns their numbers."""
        mints = range(self._next_eval, self._next_eval + len(order.tasks))
        self._next_eval = mints.stop
        for position, mint in enumerate(mints):
            self.evals[mint] = group = EvalGroup(order, position)
            self.eval_mints[group.name] = mint
            for index in range(order.num_samples):
                self.put(EpisodeRow(mint=mint, index=index))
        return mints

    def close_evals(self, mints: range) -> None:
        """Forget groups of an evaluation."""
        for mint in mints:
            group = self.evals.pop(mint)
            del self.eval_mints[group.name]
            for index in range(group.order.num_samples):
                del self.episodes[mint, index]

    def mark(self, key: str, value: int) -> None:
        if self.marks.get(key) != value:
            self.put(Mark(key, value))

    # ---- facts ----

    @property
    def published_version(self) -> int:
        """The newest version whose push has ended, or -1."""
        return self.marks.get("published_version", -1)

    @property
    def published_through(self) -> int:
        """Leases up to this one are contained in published weights."""
        return self.marks.get("published_through", 0)

    @property
    def retired_through(self) -> int:
        """Leases up to this one are covered by a durable checkpoint."""
        return self.marks.get("retired_through", 0)

    @property
    def stepped(self) -> int:
        """The last lease that an iteration consumed, and no learner since has begun before."""
        numbers = [row.number for row in self.leases.values() if row.stepped_by]
        return max(numbers, default=self.retired_through)

    @property
    def charged(self) -> int:
        """Groups whose weights are not published yet and that have no other fate."""
        through = self.published_through
        leased = sum(len(row.mints) for row in self.leases.values() if row.number > through)
        return len(self.unleased) + leased

    @property
    def store_bytes(self) -> int:
        """Bytes of needed segments. Kept ones are left out: they never stop minting."""
        return self._needed_bytes

    def group_episodes(self, mint: int) -> Iterator[EpisodeRow]:
        """The episodes of an open group, by index."""
        for index in range(self.groups[mint].size):
            yield self.episodes[mint, index]

    def done_episodes(self, mint: int) -> list[EpisodeRow]:
        return [row for row in self.group_episodes(mint) if row.outcome is Outcome.DONE]

    def sampled_tokens(self, mint: int) -> Counter[int]:
        """Sampled tokens of the `done` episodes of an open group, by weight version; no version
        without any."""
        counts: Counter[int] = Counter()
        for row in self.done_episodes(mint):
            for stored in row.trajectories:
                for version, tokens in stored.meta.versions:
                    counts[version] += tokens
        return +counts

    def episode_id(self, row: EpisodeRow) -> EpisodeId:
        group = self.evals.get(row.mint)
        return EpisodeId(group.name if group else group_id(row.mint), row.index, row.attempt)

    def find_episode(self, id: EpisodeId) -> EpisodeRow | None:
        """The open row of this very attempt, or None."""
        mint = mint_of(id.group) or self.eval_mints.get(id.group)
        row = self.episodes.get((mint, id.index)) if mint else None
        return row if row is not None and row.attempt == id.attempt else None

    # ---- storage ----

    def accept(self, payload: PayloadRef) -> None:
        """Count bytes that were written to a segment, needed or not."""
        self._use(payload, num_bytes=payload.num_bytes, live=0)

    def needs_segment(self, segment: int) -> bool:
        """Whether a payload of `segment` is still needed."""
        return self.segments.get(segment, SegmentUse()).live > 0

    def sweep_segments(self) -> None:
        """Let go of segments that nothing needs, the oldest first, down to `keep_trajectories`."""
        gone = self._let_go()
        if gone:
            self.emit(DropSegments(gone))

    def _let_go(self) -> tuple[int, ...]:
        kept = sorted(number for number, use in self.segments.items() if use.live == 0)
        excess = sum(self.segments[n].num_bytes for n in kept) - self.settings.keep_trajectories
        gone = []
        for number in kept:
            if excess <= 0:
                break
            excess -= self.segments.pop(number).num_bytes
            gone.append(number)
        return tuple(gone)

    def _use(self, payload: PayloadRef, *, num_bytes: int, live: int) -> None:
        use = self.segments.get(payload.segment, SegmentUse())
        used = SegmentUse(use.num_bytes + num_bytes, use.live + live)
        self.segments[payload.segment] = used
        self._needed_bytes += _needed(used) - _needed(use)

    # ---- indices ----

    def _put_group(self, row: GroupRow) -> None:
        if row.state is not GroupState.RETIRED:
            self._index_group(row)
            return
        assert row.fate is not None
        self.fates[row.fate] += 1
        if row.reason:
            self.reasons[row.fate] = row.reason
        for index in range(row.size):
            for stored in self.episodes.pop((row.mint, index)).trajectories:
                self._use(stored.payload, num_bytes=0, live=-1)
        del self.groups[row.mint]
        self.unleased.discard(row.mint)
        self.ready.discard(row.mint)

    def _put_lease(self, row: LeaseRow) -> None:
        """A lease of no groups is one that is yet to be made; none after it is made either."""
        made, other = (self.leases, self.unmade) if row.mints else (self.unmade, self.leases)
        made[row.number] = row
        other.pop(row.number, None)
        self.last_lease = max(self.last_lease, row.number) if row.mints else row.number - 1

    def _index_group(self, row: GroupRow) -> None:
        self.groups[row.mint] = row
        self.minted = max(self.minted, row.mint)
        self.cursor = max(self.cursor, row.cursor)
        for index, members in (
            (self.unleased, row.state in (GroupState.MINTED, GroupState.READY)),
            (self.ready, row.state is GroupState.READY),
        ):
            index.add(row.mint) if members else index.discard(row.mint)


def _needed(use: SegmentUse) -> int:
    return use.num_bytes if use.live else 0
