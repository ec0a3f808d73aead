"""Every message between the buffer and its peers, as one tagged union.

A peer is a worker, a learner rank or the driver. Messages that change state travel with a sequence
number and are resent until the buffer answers `Ack` after its commit (see `peer.py`); the buffer's
rules are idempotent, so a message that arrives twice changes nothing.

    worker   sends Hello, Capacity, Finished+columns, Snapshot+column, GroupScore
             gets  Assign+columns, ScoreGroup, Cancel, NewWeights, Engines
    learner  sends Hello, LeaseRequest, Fetch, Stepped, MayPush, AnnounceVersion, PushDone, Retire,
                   EvalWeightsSaved
             gets  Lease, Rows+columns, NoMoreLeases, PushGranted, Republish
    driver   sends Hello, Tasks, Evaluate, PeerLost, Republish, Barrier, Drain
             gets  TaskCredit, Event
    all      send  Heartbeat
             get   Welcome, Ack, Refused
"""

from typing import Any, ClassVar, Literal

import msgspec

from agentrl.columns import Column
from agentrl.types import (
    EngineAddress,
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
    """Base of all messages. `sender`: who may send it."""

    sender: ClassVar[Role | Literal["buffer", "any"]] = "buffer"


class _FromAny(_Message, frozen=True):
    sender = "any"


class _FromWorker(_Message, frozen=True):
    sender = "worker"


class _FromLearner(_Message, frozen=True):
    sender = "learner"


class _FromDriver(_Message, frozen=True):
    sender = "driver"


# ---- peer -> buffer ------------------------------------------------------------------------------


class Hello(_FromAny, frozen=True, tag="hello"):
    """First message of a peer. `incarnation` is new for each process; `running` lists the
    episodes a worker still plays after a reconnect."""

    role: Role
    name: str
    incarnation: str
    running: list[EpisodeId] = []


class Heartbeat(_FromAny, frozen=True, tag="beat"):
    """Nothing to say, still here. Any other message counts as one."""


class Capacity(_FromWorker, frozen=True, tag="capacity"):
    """How many episodes this worker can hold in all (running ones included), and its permits."""

    episodes: int
    permits: PermitStats = PermitStats()


class Finished(_FromWorker, frozen=True, tag="finished"):
    """An episode ended; columns of its trajectories follow."""

    report: EpisodeReport


class Snapshot(_FromWorker, frozen=True, tag="snapshot"):
    """An episode between two turns, as one column of bytes that only workers read. Lost without
    harm: the episode would begin anew, or at an earlier turn."""

    id: EpisodeId


class GroupScore(_FromWorker, frozen=True, tag="verdict"):
    """Rewards of a group, in the order of the `ScoreGroup` summaries, and whether to keep it.
    `error` set: scoring raised; the group's fate is env_error."""

    group: str
    rewards: list[float] = []
    keep: bool = True
    reason: str = ""
    error: str | None = None


class Tasks(_FromDriver, frozen=True, tag="tasks"):
    """Tasks in source order; `cursor` is the source position after the last of them.
    `exhausted`: the source has no more."""

    tasks: list[Task]
    cursor: int
    exhausted: bool = False


class Evaluate(_FromDriver, frozen=True, tag="evaluate"):
    """Play each task `num_samples` times outside the ledger; results come back as
    Event("evaluation", {...}) when all have ended. `beside`: training goes on meanwhile, and keeps
    three quarters of the permits. `pinned`: all tokens are to be of one version, so pushes that
    ask wait until it has ended. `tells_episodes`: of each of them, not of the set alone. `is_call`:
    its one episode is a call of --eval-function-path, which its worker ends when it hangs."""

    name: str
    id: str
    tasks: list[Task]
    num_samples: int
    sampling: SamplingParams
    seed: int = 0
    beside: bool = False
    pinned: bool = False
    tells_episodes: bool = False
    is_call: bool = False


class PeerLost(_FromDriver, frozen=True, tag="peer_lost"):
    """The driver saw this process end: requeue what it held, now. `incarnation`: which process of
    the name, so that no successor is taken for it; empty: whichever bears the name. `failed`: it
    ended by itself, with an error of which what it worked on may be the cause."""

    name: str
    incarnation: str = ""
    failed: bool = False


class Republish(_FromDriver, frozen=True, tag="republish"):
    """An engine may lack the newest weights: publish them again. From the driver, which counts, and
    passed on to the learner at each of its questions until it has heeded this `number`. `engines`:
    where all engines are, once one has moved; workers are told of it too (`Engines`)."""

    number: int
    engines: list[EngineAddress] = []


class Barrier(_FromDriver, frozen=True, tag="echo"):
    """Tell this back as an event: whoever hears it has heard of everything before."""

    id: str


class Drain(_FromDriver, frozen=True, tag="drain"):
    """Stop minting and cancel what is in flight. Every open group gets its fate, unless the run is
    `resumable`: then all stays as it is, for the program that continues it."""

    reason: str
    resumable: bool = False


class LeaseRequest(_FromLearner, frozen=True, tag="lease_request"):
    """The learner wants lease `number`; it is pushed as soon as N groups are READY.
    `republished`: the number of the last Republish that it has heeded."""

    number: int
    republished: int = 0


class Fetch(_FromLearner, frozen=True, tag="fetch"):
    """Send `columns` of these payloads, by name; when empty, those of every trajectory. `optional`:
    the optional columns that lie in each payload; empty when none lie in any."""

    request: int
    payloads: list[PayloadRef]
    columns: list[str] = []
    optional: list[tuple[Column, ...]] = []


class Logged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a log function of the user's made of an iteration or an evaluation. `alone`: trackers
    shall have its figures in place of the run's own; `told`: what went wrong; `call`: `made`,
    `lost` (it did not begin, or not end), or `over` (and the function is not called again)."""

    figures: dict[str, float] = {}
    alone: bool = False
    told: str = ""
    call: Literal["made", "lost", "over"] = "made"


class Stepped(_FromLearner, frozen=True, tag="stepped"):
    """Lease `number` has been consumed by an iteration. `old_share`: share of its sampled tokens
    older than the bound, before masking. Seconds: waiting for the lease, whole iteration.
    `logged`: by --custom-rollout-log-function-path."""

    number: int
    skipped: bool
    old_share: float
    wait_s: float
    iteration_s: float
    metrics: dict[str, Any] = {}
    logged: Logged | None = None


class MayPush(_FromLearner, frozen=True, tag="push_request"):
    """May the engines get `version` now? The answer waits while an evaluation is pinned.
    `republished`: as in LeaseRequest."""

    version: int
    republished: int = 0


class AnnounceVersion(_FromLearner, frozen=True, tag="publishing"):
    """Engines are about to be given these weights. From its commit on the number is theirs alone,
    whether their push ends or not."""

    row: VersionRow


class PushDone(_FromLearner, frozen=True, tag="published"):
    """The engines serve `row.version` now. `through`: leases up to this one are contained in it."""

    row: VersionRow
    through: int
    metrics: dict[str, float] = {}


class EvalWeightsSaved(_FromLearner, frozen=True, tag="eval_weights_saved"):
    """These weights are written, to be evaluated (`agentrl/eval_weights.py`)."""

    row: VersionRow


class Retire(_FromLearner, frozen=True, tag="retire"):
    """A durable checkpoint covers leases up to `through`: their fates are final."""

    through: int


# ---- buffer -> peer ------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, tag="welcome"):
    """The peer's epoch: every message it sends carries it; older epochs are refused. `versions`:
    all that were announced or published, in order; `published_version`: the newest whose push has
    ended, or -1. `stepped`: the last lease that an iteration consumed. `retired_through`: leases up
    to this one are gone for ever. `fates`: groups so far, by fate. `republish`: the last Republish
    so far; the first push of a new learner is an answer to it. `engines`: as it said them.
    `remade`: how often a lease that weights hold was given up, and made of others."""

    epoch: int
    heartbeat_s: float
    versions: list[VersionRow] = []
    last_lease: int = 0
    retired_through: int = 0
    cursor: int = 0
    published_version: int = -1
    stepped: int = 0
    fates: dict[str, int] = {}
    republish: int = 0
    engines: list[EngineAddress] = []
    remade: int = 0


class Ack(_Message, frozen=True, tag="ack"):
    """These sequence numbers are committed."""

    seqs: list[int]


class Refused(_Message, frozen=True, tag="refused"):
    """The message could not be taken and must not be resent. `fatal`: the peer must exit."""

    reason: str
    seq: int = 0
    fatal: bool = False


class Assign(_Message, frozen=True, tag="assign"):
    """Episodes to play. `saved`: places in `episodes` of those that go on from a snapshot, each of
    which follows as a column."""

    episodes: list[EpisodeAssignment]
    saved: list[int] = []


class Cancel(_Message, frozen=True, tag="cancel"):
    """Stop these episodes; nothing they produce is wanted."""

    episodes: list[EpisodeId]


class NewWeights(_Message, frozen=True, tag="new_weights"):
    """Engines serve `version` now. Only where that matters: under `--no-partial-rollout` turns in
    flight that began before are to be sampled again, under `--kv-across-pushes keep` turns that
    begin have another part of the cache. Sent once; a reply tells its versions by itself."""

    version: int


class Engines(_Message, frozen=True, tag="engines"):
    """Where all engines are, now that one has moved: aborts go there. Sent once; a new Welcome says
    it again."""

    engines: list[EngineAddress]


class ScoreGroup(_Message, frozen=True, tag="judge"):
    """Every episode of the group has an outcome: score it."""

    group: str
    task: Task
    episodes: list[EpisodeSummary]


class ScoredGroup(msgspec.Struct, frozen=True):
    """A group with its scores: the `done` episodes with the rewards that scoring gave them, and
    whether the filter kept it, with its reason. `mint`: the number of the group in the run, from 1.
    """

    mint: int
    task: Task
    episodes: list[EpisodeSummary]
    kept: bool
    reason: str = ""


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


class PushGranted(_Message, frozen=True, tag="push_grant"):
    """No evaluation minds: push `version`."""

    version: int


class Rows(_Message, frozen=True, tag="rows"):
    """Answer to Fetch: for each payload in order, its columns in order, empty where it has none of
    that name. `missing` lists the indices of payloads that failed their checksum: all are empty."""

    request: int
    missing: list[int] = []


class Event(_Message, frozen=True, tag="event"):
    """Something happened that people or dashboards want to see."""

    kind: str
    data: dict[str, Any] = {}


_OfAll = Hello | Heartbeat
_OfWorker = Capacity | Finished | Snapshot | GroupScore
_OfDriver = Tasks | Evaluate | PeerLost | Republish | Barrier | Drain
_Asked = LeaseRequest | Fetch | MayPush
_OfLearner = _Asked | Stepped | AnnounceVersion | PushDone | EvalWeightsSaved | Retire
_ToAll = Welcome | Ack | Refused
_ToWorker = Assign | Cancel | NewWeights | Engines | ScoreGroup
_ToLearner = Lease | NoMoreLeases | PushGranted | Rows
_ToDriver = TaskCredit | Event
Message = _OfAll | _OfWorker | _OfDriver | _OfLearner | _ToAll | _ToWorker | _ToLearner | _ToDriver


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with the sender's epoch and, where it wants an Ack, its sequence number (> 0)."""

    epoch: int
    seq: int
    body: Message
