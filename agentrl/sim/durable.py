"""The ledger without a disk: the last row of each key, and what a restart reads of them.

The model of `agentrl.buffer.ledger`; a test lets both remember the same run. Promises are checked
at every write, from the rows alone:

    an episode that is done stays as it is
    nothing is minted beyond (min(B, S) + I) * N charged groups, or Q where S = 0: a group is
    charged until published weights contain its lease, or it has another fate
    a task is minted once, and again only when the group that it had is stale, or surplus unscored
    published weights contain no lease whose iteration is not recorded
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from agentrl.buffer import rows
from agentrl.buffer.ids import group_id
from agentrl.buffer.rows import EpisodeRow, GroupRow, LedgerState, Mark
from agentrl.sim.truth import BrokenPromiseError
from agentrl.types import EpisodeId, Fate, GroupState, Outcome, VersionRow

__all__ = ["Durable"]


class Durable:
    """Rows by kind and key, which outlive the core; at most `most_charged` groups are charged."""

    def __init__(self, most_charged: int) -> None:
        self._most_charged = most_charged
        self._charged: set[int] = set()
        self._latest: dict[int, GroupRow] = {}
        self.groups: dict[int, GroupRow] = {}
        self._episodes: dict[tuple[int, int], EpisodeRow] = {}
        self._leases: dict[int, rows.LeaseRow] = {}
        self._versions: dict[int, VersionRow] = {}
        self._peers: dict[int, rows.PeerRow] = {}
        self._marks: dict[str, Mark] = {}
        self._pacing: rows.PacingRow | None = None

    def commit(self, written: Iterable[rows.Row]) -> None:
        """Write rows in order."""
        for row in written:
            match row:
                case EpisodeRow():
                    self._put_episode(row)
                case GroupRow():
                    self._put_group(row)
                case rows.LeaseRow():
                    self._leases[row.number] = row
                case VersionRow():
                    self._versions[row.version] = row
                case rows.PeerRow():
                    self._peers[row.epoch] = row
                case Mark():
                    self._put_mark(row)
                case rows.PacingRow():
                    self._pacing = row

    def fates(self) -> dict[int, Fate | None]:
        """The fate of every group ever minted, None while it is open."""
        return {mint: row.fate for mint, row in self.groups.items()}

    def claimed(self) -> set[tuple[EpisodeId, str | None]]:
        """Episodes that are being played, each with its worker."""
        return {
            (EpisodeId(group_id(row.mint), row.index, row.attempt), row.worker)
            for row in self._episodes.values()
            if row.worker is not None and self.groups[row.mint].fate is None
        }

    def waiting(self) -> list[str]:
        """Work that nobody does now: episodes to be played, groups to be scored."""
        found = []
        for mint, group in self.groups.items():
            if group.state is not GroupState.MINTED:
                continue
            episodes = [self._episodes[mint, index] for index in range(group.size)]
            found += [
                f"episode {mint}/{row.index} to be played"
                for row in episodes
                if row.worker is None and row.outcome is None
            ]
            if all(row.outcome is not None for row in episodes):
                found.append(f"group {mint} to be scored")
        return found

    def load(self) -> LedgerState:
        """What a restart needs."""
        groups = [row for row in self.groups.values() if row.state is not GroupState.RETIRED]
        done_with = min(self._mark("published_through"), self._mark("retired_through"))
        fates = Counter(row.fate for row in self.groups.values() if row.fate is not None)
        return LedgerState(
            groups=tuple(groups),
            episodes=tuple(
                self._episodes[row.mint, index] for row in groups for index in range(row.size)
            ),
            leases=tuple(row for row in self._leases.values() if row.number > done_with),
            versions=tuple(self._versions.values()),
            pacing=self._pacing,
            peers=tuple(self._peers.values()),
            marks=tuple(self._marks.values()),
            fates=dict(fates),
            minted=max(self.groups, default=0),
            cursor=max((row.cursor for row in self.groups.values()), default=0),
            total_sampled_tokens=self._total_sampled_tokens(),
            last_lease=max(self._leases, default=0),
            segments=self._segments(),
            stale=tuple(sorted(self._stale(), key=lambda row: row.mint)),
        )

    def _mark(self, key: str) -> int:
        return self._marks[key].value if key in self._marks else 0

    def _put_mark(self, row: Mark) -> None:
        self._marks[row.key] = row
        if row.key == "published_through":
            lease = self._leases.get(row.value)
            if lease is not None and not lease.stepped_by:
                raise BrokenPromiseError(
                    f"published weights contain lease {row.value}, whose iteration is not recorded"
                )
            self._charged = {
                group.mint for group in self.groups.values() if self._is_charged(group)
            }

    def _put_group(self, row: GroupRow) -> None:
        is_new = row.mint not in self.groups
        if is_new:
            self._check_task(row)
        self.groups[row.mint] = self._latest[row.cursor] = row
        if self._is_charged(row):
            self._charged.add(row.mint)
        else:
            self._charged.discard(row.mint)
        if is_new and len(self._charged) > self._most_charged:
            raise BrokenPromiseError(
                f"minting group {row.mint} makes {len(self._charged)} charged groups, of at most"
                f" {self._most_charged}"
            )

    def _check_task(self, row: GroupRow) -> None:
        before = self._latest.get(row.cursor)
        if before is not None and not _may_follow(before):
            raise BrokenPromiseError(
                f"task {row.cursor} is minted as group {row.mint}, and group {before.mint} of it"
                f" has the fate {before.fate}"
            )

    def _stale(self) -> Iterator[GroupRow]:
        """The last group of each task, where it became stale or surplus."""
        return (row for row in self._latest.values() if row.fate in (Fate.STALE, Fate.SURPLUS))

    def _is_charged(self, row: GroupRow) -> bool:
        if row.fate not in (None, Fate.TRAINED, Fate.SKIPPED):
            return False
        return row.lease is None or row.lease > self._mark("published_through")

    def _put_episode(self, row: EpisodeRow) -> None:
        known = self._episodes.get((row.mint, row.index))
        if known is not None and known.outcome is Outcome.DONE and row != known:
            raise BrokenPromiseError(
                f"episode {row.mint}/{row.index} was done in attempt {known.attempt}, and is"
                f" {row.outcome or 'played again'} in attempt {row.attempt}"
            )
        self._episodes[row.mint, row.index] = row

    def _total_sampled_tokens(self) -> int:
        taken = (stored for row in self._episodes.values() for stored in row.trajectories)
        return sum(stored.meta.num_sampled for stored in taken)

    def _segments(self) -> dict[int, rows.SegmentUse]:
        use: dict[int, rows.SegmentUse] = {}
        for row in self._episodes.values():
            needed = self.groups[row.mint].state is not GroupState.RETIRED
            for stored in row.trajectories:
                known = use.get(stored.payload.segment, rows.SegmentUse())
                use[stored.payload.segment] = rows.SegmentUse(
                    known.num_bytes + stored.payload.num_bytes, known.live + needed
                )
        return use


def _may_follow(before: GroupRow) -> bool:
    """Whether another group of its task may be minted."""
    return before.fate is Fate.STALE or (before.fate is Fate.SURPLUS and before.rewards is None)
