"""The durable rows of the ledger, as frozen structs: a change of state is a new row.

The core holds these rows and nothing else that must survive; `Persist(row)` writes one as it is
(the last write of a key wins), and `LedgerState` is what a restart reads back.
"""

from collections.abc import Collection

import msgspec

from agentrl.types import (
    EpisodeFacts,
    Fate,
    GroupState,
    Outcome,
    PayloadRef,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import Role

__all__ = [
    "EpisodeRow",
    "GroupRow",
    "LeaseRow",
    "LedgerState",
    "Mark",
    "PacingRow",
    "PeerRow",
    "Row",
    "SegmentUse",
    "StoredTrajectory",
]


class GroupRow(msgspec.Struct, frozen=True):
    """A group. `rewards` (scored) align with its `done` episodes in order of index. `cursor` is the
    source position after its task: the largest one says where to ask for tasks again. `repeat`: how
    often its task was minted before, each time in a group that became stale."""

    mint: int
    task: Task
    size: int
    cursor: int
    state: GroupState = GroupState.MINTED
    fate: Fate | None = None
    lease: int | None = None
    rewards: tuple[float, ...] | None = None
    reason: str = ""
    repeat: int = 0


class StoredTrajectory(msgspec.Struct, frozen=True):
    """A trajectory whose columns are fsynced."""

    meta: TrajectoryMeta
    payload: PayloadRef


class EpisodeRow(msgspec.Struct, frozen=True):
    """An episode: queued (no worker, no outcome), claimed (worker), finished (outcome). `wall_s`:
    how long the attempt took that gave it its outcome; `answer`: for scoring, and empty once its
    group has a score or a fate."""

    mint: int
    index: int
    attempt: int = 0
    engine_failures: int = 0
    env_failures: int = 0
    worker: str | None = None
    outcome: Outcome | None = None
    stop_reason: StopReason | None = None
    reward: float = 0.0
    metrics: dict[str, float] = {}
    error: str | None = None
    wall_s: float = 0.0
    answer: str = ""
    trajectories: tuple[StoredTrajectory, ...] = ()
    facts: EpisodeFacts = EpisodeFacts()

    @property
    def num_failures(self) -> int:
        """Attempts that failed so far, poison aside."""
        return self.engine_failures + self.env_failures


class LeaseRow(msgspec.Struct, frozen=True):
    """A lease and its groups in order; `stepped_by`: epoch of the learner that stepped it, or 0.

    `ended`: epochs of the learners that ended in it, by themselves, since it was made or stepped.
    One of no groups was given up, or came after one that was, and is yet to be made again;
    `given_up`: the groups that leases of this number had and that ended the learner too often.
    """

    number: int
    mints: tuple[int, ...]
    last: bool = False
    stats: dict[str, float] = {}
    stepped_by: int = 0
    skipped: bool = False
    ended: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()


class PacingRow(msgspec.Struct, frozen=True):
    """The adaptive cap C on charged groups and e, the averaged share of old tokens.
    `dropped_tokens`: sampled tokens of the groups that became stale since the last lease."""

    cap: float
    old_share: float = 0.0
    dropped_tokens: int = 0


class PeerRow(msgspec.Struct, frozen=True):
    """One incarnation of a peer. Epochs are unique in a run; the largest of a name is current."""

    epoch: int
    name: str
    role: Role
    incarnation: str


class Mark(msgspec.Struct, frozen=True):
    """A number with a name: published_version, published_through, retired_through,
    requested_lease, requested_by."""

    key: str
    value: int


Row = GroupRow | EpisodeRow | LeaseRow | PacingRow | PeerRow | Mark | VersionRow


class SegmentUse(msgspec.Struct, frozen=True):
    """Bytes accepted into a segment and how many of its payloads are still needed: with none, it is
    kept for reading only."""

    num_bytes: int = 0
    live: int = 0


class LedgerState(msgspec.Struct, frozen=True):
    """What a restart needs: open groups with their episodes and leases, and the small tables.

    `segments` are all that a payload was ever acknowledged in, let go or not: a number is not used
    twice. `stale` are the groups that became stale or surplus and whose task no later group
    has. `total_sampled_tokens`: in all trajectories that were ever taken, of retired groups too.
    """

    groups: tuple[GroupRow, ...] = ()
    episodes: tuple[EpisodeRow, ...] = ()
    leases: tuple[LeaseRow, ...] = ()
    versions: tuple[VersionRow, ...] = ()
    pacing: PacingRow | None = None
    peers: tuple[PeerRow, ...] = ()
    marks: tuple[Mark, ...] = ()
    fates: dict[Fate, int] = {}
    minted: int = 0
    cursor: int = 0
    total_sampled_tokens: int = 0
    last_lease: int = 0
    segments: dict[int, SegmentUse] = {}
    stale: tuple[GroupRow, ...] = ()

    def without_lost_segments(self, on_disk: Collection[int]) -> "LedgerState":
        """The same without segments that nothing needs and that are not there any more."""
        found = {n: use for n, use in self.segments.items() if use.live or n in on_disk}
        return msgspec.structs.replace(self, segments=found)
