"""What a buffer's peers know, all of it from messages, and the sums that follow from it.

The model never looks into the core. It fails on a message that contradicts an earlier one.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from agentrl.buffer import BufferSettings
from agentrl.buffer.rows import GroupRow, LedgerState
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    Fate,
    GroupState,
    LeaseHeader,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import Assign, Cancel, Lease, Message, ScoreGroup, TaskCredit, Welcome

WORKERS = ("w0", "w1", "w2")


class Worker:
    """What a worker process knows."""

    def __init__(self) -> None:
        self.playing: set[EpisodeId] = set()
        self.reported: list[EpisodeReport] = []
        self.orders: dict[str, int] = {}


class Model:
    """What the driver, the learner and the workers have been told and have said.

    `received` is the newest lease of the learner that lives, `through` the last iteration whose
    weights are published, `attempts` the newest attempt at each episode, `dropped` the sampled
    tokens of each group that became stale and counts at no lease yet. `deaths`: learners that ended
    in each lease since it was made or stepped; `given_up`: groups of leases that ended too many.
    """

    def __init__(self, settings: BufferSettings) -> None:
        self.settings = settings
        self.epoch: dict[str, int] = {}
        self.workers = {name: Worker() for name in WORKERS}
        self.credit: TaskCredit | None = None
        self.leases: dict[int, list[int]] = {}
        self.received = 0
        self.versions: list[VersionRow] = []
        self.through = 0
        self.old_share = 0.0
        self.attempts: dict[tuple[str, int], int] = {}
        self.stale: set[int] = set()
        self.dropped: list[Counter[int]] = []
        self.deaths: Counter[int] = Counter()
        self.given_up: set[int] = set()

    def hear(self, peer: str, message: Message) -> None:
        """A message reaches the process `peer`, which is NAME.INCARNATION."""
        name = peer.partition(".")[0]
        match message:
            case Welcome():
                self.epoch[peer] = message.epoch
            case TaskCredit():
                self.credit = message
            case Assign():
                for episode in message.episodes:
                    self._assign(name, episode.id)
            case Cancel():
                self.workers[name].playing -= set(message.episodes)
            case ScoreGroup():
                self.workers[name].orders[message.group] = len(message.episodes)
            case Lease(header):
                self._lease(header)

    def _assign(self, name: str, id: EpisodeId) -> None:
        key = (id.group, id.index)
        assert id.attempt > self.attempts.get(key, -1), "an attempt was given twice"
        self.attempts[key] = id.attempt
        self.workers[name].playing.add(id)

    def _lease(self, header: LeaseHeader) -> None:
        mints = [group.mint for group in header.groups]
        if header.number not in self.leases:
            self._average(header)
            metas = [row.meta for group in header.groups for row in group.trajectories]
            if self.settings.staleness_policy == "drop":
                assert not self._old(_sampled(metas), header.number), "an old token was leased"
        known = self.leases.setdefault(header.number, mints)
        assert known == mints, "a lease changed"
        assert self.given_up.isdisjoint(mints), "what was given up is leased again"
        self.received = header.number
        for group in header.groups:
            assert len(group.rewards) == len(group.episodes) == len(group.trajectories)
            assert len(group.rewards) >= self.settings.least_done

    def _average(self, header: LeaseHeader) -> None:
        counts = _sampled([row.meta for group in header.groups for row in group.trajectories])
        lost = [group for group in self.dropped if self._old(group, header.number)]
        self.dropped = [group for group in self.dropped if group not in lost]
        num_lost = sum(group.total() for group in lost)
        share = (self._old(counts, header.number) + num_lost) / (counts.total() + num_lost)
        self.old_share = 0.9 * self.old_share + 0.1 * share

    def _old(self, counts: Counter[int], lease: int) -> int:
        """Tokens that are older than the bound in this lease, recoveries apart."""
        iteration = {row.version: row.iteration for row in self.versions}
        bound = self.settings.max_staleness
        return sum(n for version, n in counts.items() if lease - 1 - iteration[version] > bound)

    def read(self, ledger: LedgerState, next_lease: int, *, recovered: bool) -> None:
        """Take in what an event has made of the ledger, under the policy drop; `next_lease` is the
        one to be made."""
        metas: defaultdict[int, list[TrajectoryMeta]] = defaultdict(list)
        for row in ledger.episodes:
            metas[row.mint] += [stored.meta for stored in row.trajectories]
        for group in ledger.groups:
            counts = _sampled(metas[group.mint])
            if group.fate is Fate.STALE and group.mint not in self.stale:
                assert recovered or self._old(counts, next_lease), "a fresh group was dropped"
                self.stale.add(group.mint)
                self.dropped.append(counts)
            if group.state is GroupState.READY:
                assert not self._old(counts, next_lease), "a stale group waits"

    def gave_up(self, number: int) -> None:
        """A lease has ended too many learners: it and all after it do not exist any more."""
        self.given_up |= set(self.leases[number])
        for later in [later for later in self.leases if later >= number]:
            del self.leases[later]
            self.deaths[later] = 0

    def published(self, row: VersionRow, through: int) -> None:
        self.versions.append(row)
        self.through = through

    def limit(self) -> int:
        """Groups that may be charged at the most."""
        s = self.settings
        ahead = min(s.async_buffer_size, s.max_staleness)
        limit = (ahead + s.update_weights_interval) * s.rollout_batch_size
        return max(limit, s.over_sampling_batch_size or 0) if s.max_staleness == 0 else limit

    def charged(self, groups: Sequence[GroupRow]) -> int:
        """How many of a ledger's groups are charged."""
        unleased = sum(group.lease is None and group.fate is None for group in groups)
        return unleased + sum((group.lease or 0) > self.through for group in groups)


def _sampled(metas: Sequence[TrajectoryMeta]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for meta in metas:
        counts.update(dict(meta.versions))
    return counts
