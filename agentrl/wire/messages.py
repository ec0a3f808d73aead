"""Every message between the buffer and its peers, as one tagged union.

A peer is a worker, a learner rank or the driver. Messages that change state travel with a sequence
number and are resent until the buffer answers `Ack` after its commit (see `peer.py`); the buffer's
rules are idempotent, so a message that arrives twice changes nothing.

    worker   sends Hello, Capacity, Finished+columns, Verdict
             gets  Assign, Judge, Cancel
    learner  sends Hello, LeaseRequest, Fetch, Stepped, Published, Retire
             gets  Lease, Rows+columns, NoMoreLeases
    driver   sends Hello, Tasks, Evaluate, PeerLost, Echo, Drain
             gets  TaskCredit, Event
    all      send  Heartbeat
             get   Welcome, Ack, Refused
"""

from typing import Any, Literal

import msgspec

from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    EpisodeSummary,
    LeaseHeader,
    PayloadRef,
    PermitStats,
    SamplingParams,
    Task,
    VersionRow,
)

Role = Literal["worker", "learner", "driver"]


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t"):
    """Base of all messages."""


# ---- peer -> buffer ------------------------------------------------------------------------------


class Hello(_Message, frozen=True, tag="hello"):
    """First message of a peer. `incarnation` is new for each process; `running` lists the
    episodes a worker still plays after a reconnect."""

    role: Role
    name: str
    incarnation: str
    running: list[EpisodeId] = []


class Heartbeat(_Message, frozen=True, tag="beat"):
    """Nothing to say, still here. Any other message counts as one."""


class Capacity(_Message, frozen=True, tag="capacity"):
    """How many episodes this worker can hold in all (running ones included), and its permits."""

    episodes: int
    permits: PermitStats = PermitStats()


class Finished(_Message, frozen=True, tag="finished"):
    """An episode ended; columns of its trajectories follow."""

    report: EpisodeReport


class Verdict(_Message, frozen=True, tag="verdict"):
    """The judge's word on a group: rewards in the order of the `Judge` summaries, and whether to
    keep it. `error` set: the judge raised; the group's fate is env_error."""

    group: str
    rewards: list[float] = []
    keep: bool = True
    reason: str = ""
    error: str | None = None


class Tasks(_Message, frozen=True, tag="tasks"):
    """Tasks in source order; `cursor` is the source position after the last of them.
    `exhausted`: the source has no more."""

    tasks: list[Task]
    cursor: int
    exhausted: bool = False


class Evaluate(_Message, frozen=True, tag="evaluate"):
    """Play each task `num_samples` times outside the ledger; results come back as
    Event("evaluation", {...}) when all have ended."""

    name: str
    id: str
    tasks: list[Task]
    num_samples: int
    sampling: SamplingParams
    seed: int = 0


class PeerLost(_Message, frozen=True, tag="peer_lost"):
    """The driver saw this process end: requeue what it held, now."""

    name: str


class Echo(_Message, frozen=True, tag="echo"):
    """Tell this back as an event: whoever hears it has heard of everything before."""

    id: str


class Drain(_Message, frozen=True, tag="drain"):
    """Stop minting and cancel what is in flight. Every open group gets its fate, unless the run is
    `resumable`: then all stays as it is, for the program that continues it."""

    reason: str
    resumable: bool = False


class LeaseRequest(_Message, frozen=True, tag="lease_request"):
    """The learner wants lease `number`; it is pushed as soon as N groups are READY."""

    number: int


class Fetch(_Message, frozen=True, tag="fetch"):
    """Send the columns of these payloads (names of `COLUMNS`; all when empty)."""

    request: int
    payloads: list[PayloadRef]
    columns: list[str] = []


class Stepped(_Message, frozen=True, tag="stepped"):
    """Lease `number` has been consumed by an iteration. `old_share`: share of its sampled tokens
    older than the bound, before masking. Seconds: waiting for the lease, whole iteration."""

    number: int
    skipped: bool
    old_share: float
    wait_s: float
    iteration_s: float
    metrics: dict[str, Any] = {}


class Published(_Message, frozen=True, tag="published"):
    """The engines serve `row.version` now. `through`: leases up to this one are contained in it."""

    row: VersionRow
    through: int
    metrics: dict[str, float] = {}


class Retire(_Message, frozen=True, tag="retire"):
    """A durable checkpoint covers leases up to `through`: their fates are final."""

    through: int


# ---- buffer -> peer ------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, tag="welcome"):
    """The peer's epoch: every message it sends carries it; older epochs are refused."""

    epoch: int
    heartbeat_s: float
    versions: list[VersionRow] = []
    next_lease: int = 1
    last_lease: int = 0
    cursor: int = 0


class Ack(_Message, frozen=True, tag="ack"):
    """These sequence numbers are committed."""

    seqs: list[int]


class Refused(_Message, frozen=True, tag="refused"):
    """The message could not be taken and must not be resent. `fatal`: the peer must exit."""

    reason: str
    seq: int = 0
    fatal: bool = False


class Assign(_Message, frozen=True, tag="assign"):
    """Episodes to play."""

    episodes: list[EpisodeAssignment]


class Cancel(_Message, frozen=True, tag="cancel"):
    """Stop these episodes; nothing they produce is wanted."""

    episodes: list[EpisodeId]


class Judge(_Message, frozen=True, tag="judge"):
    """Every episode of the group has an outcome: judge it."""

    group: str
    task: Task
    episodes: list[EpisodeSummary]


class TaskCredit(_Message, frozen=True, tag="task_credit"):
    """Send up to `num_tasks` more tasks, from position `cursor` on."""

    num_tasks: int
    cursor: int


class Lease(_Message, frozen=True, tag="lease"):
    """A rollout batch."""

    header: LeaseHeader


class NoMoreLeases(_Message, frozen=True, tag="no_more_leases"):
    """No further lease will come: the source is exhausted, the run is long enough, or it drains."""

    after: int
    reason: str


class Rows(_Message, frozen=True, tag="rows"):
    """Answer to Fetch: for each payload in order, its columns in order. `missing` lists the indices
    of payloads that failed their checksum (their columns are empty)."""

    request: int
    missing: list[int] = []


class Event(_Message, frozen=True, tag="event"):
    """Something happened that people or dashboards want to see."""

    kind: str
    data: dict[str, Any] = {}


Message = (
    Hello
    | Heartbeat
    | Capacity
    | Finished
    | Verdict
    | Tasks
    | Evaluate
    | PeerLost
    | Echo
    | Drain
    | LeaseRequest
    | Fetch
    | Stepped
    | Published
    | Retire
    | Welcome
    | Ack
    | Refused
    | Assign
    | Cancel
    | Judge
    | TaskCredit
    | Lease
    | NoMoreLeases
    | Rows
    | Event
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with the sender's epoch and, where it wants an Ack, its sequence number (> 0)."""

    epoch: int
    seq: int
    body: Message
