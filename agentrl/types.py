"""The words every room shares: what a task, group, episode, trajectory and lease are made of.

Group      MINTED -> READY -> LEASED -> STEPPED(k) -> RETIRED
Episode    QUEUED -> CLAIMED -> FINISHED(outcome)
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Literal, Protocol

import msgspec

from agentrl.columns import COLUMNS, Column
from agentrl.evaluated import Evaluated

__all__ = [
    "MAX_SNAPSHOT_BYTES",
    "EngineAddress",
    "EngineKind",
    "EpisodeAssignment",
    "EpisodeFacts",
    "EpisodeId",
    "EpisodeReport",
    "EpisodeSummary",
    "Fate",
    "Generation",
    "GroupRows",
    "GroupState",
    "LeaseHeader",
    "Outcome",
    "PayloadRef",
    "PermitStats",
    "PushReport",
    "SamplingParams",
    "SpanKind",
    "StopReason",
    "Task",
    "TaskSource",
    "TrajectoryMeta",
    "TrajectoryRow",
    "TurnClient",
    "VersionRow",
    "WeightSink",
]


class SpanKind(IntEnum):
    """Who wrote a token. Only SAMPLED (RL) and DEMONSTRATION (SFT) tokens can be trained."""

    CONTROL = 0
    SAMPLED = 1
    UNTRUSTED = 2
    DEMONSTRATION = 3


class Outcome(StrEnum):
    """How one episode ended."""

    DONE = "done"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    POISON = "poison"
    CANCELLED = "cancelled"
    FILTERED = "filtered"


class StopReason(StrEnum):
    """Why a finished episode stopped; only TERMINATED is the task's own end."""

    TERMINATED = "terminated"
    ENV_TRUNCATED = "env_truncated"
    TURN_LIMIT = "turn_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    RESPONSE_LIMIT = "response_limit"
    CONTEXT_LIMIT = "context_limit"
    TIME_LIMIT = "time_limit"
    POLICY_ERROR = "policy_error"
    GIVEN_UP = "given_up"
    ERROR = "error"


class Fate(StrEnum):
    """How a group ended. Exactly one each."""

    TRAINED = "trained"
    STALE = "stale"
    FILTERED = "filtered"
    SURPLUS = "surplus"
    SKIPPED = "skipped"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    POISON = "poison"
    CANCELLED = "cancelled"


class GroupState(StrEnum):
    """Where an open group stands; RETIRED groups have a final fate."""

    MINTED = "minted"
    READY = "ready"
    LEASED = "leased"
    STEPPED = "stepped"
    RETIRED = "retired"


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task. `row` goes to `reset(task=...)` of the Env; `part`: of a mixture (`--env-mix`)."""

    id: str
    row: dict[str, Any]
    part: str = ""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a turn is sampled. `stop`: strings that end it, for engines with a tokenizer. `min_p`:
    share of the likeliest token's probability that a token needs. `seed`: of this turn alone."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    min_p: float = 0.0
    seed: int | None = None


class EpisodeId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Identity of an episode: group, index in the group, attempt (0, 1, ...)."""

    group: str
    index: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.group}/{self.index}#{self.attempt}"


class EpisodeAssignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """An episode to play. `mint` orders permits, lowest first. `evaluation`: its set, or None."""

    id: EpisodeId
    mint: int
    seed: int
    task: Task
    sampling: SamplingParams
    evaluation: str | None = None


class TrajectoryMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a trajectory without its columns.

    `versions` counts sampled tokens by weight version, in order of version. `reward`: the Env's own
    of the episode, or of `role`, the name under which the policy played (`agentrl.roles`).
    `segment` numbers the trajectories of an episode that rewrote its history; one that is not 0
    begins with a prompt that repeats what was said before, as the chat format remembers it.
    `columns`: its optional columns, in the order in which they travel. `num_demonstrated`: tokens
    to be imitated; those that EXCLUDED leaves out are not counted.
    """

    num_tokens: int
    num_sampled: int
    num_turns: int
    reward: float
    versions: list[tuple[int, int]]
    role: str = "policy"
    num_demonstrated: int = 0
    segment: int = 0
    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        if self.columns and len({column.name for column in self.layout}) < len(self.layout):
            raise ValueError(f"a column is there twice: {[column.name for column in self.layout]}")

    @property
    def layout(self) -> tuple[Column, ...]:
        """All its columns, as they travel and lie: one after the other."""
        return (*COLUMNS.values(), *self.columns)


class EpisodeFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a worker says of an episode that nobody but the learner and people read: it goes through
    ledger and lease as it came. A fact is declared here, set where the report is made, and read.

    `env`: the Env, as `--env` names it; `part`: that of a mixture. `turn_rewards`: what each turn
    earned, from the first on; empty where all was earned with the last. `env_reward`: the Env's own
    reward, where one of its trajectories has another; None: they all have that."""

    env: str = ""
    part: str = ""
    turn_rewards: tuple[float, ...] = ()
    env_reward: float | None = None


class EpisodeReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of a finished episode. Its columns follow, as `layouts` says. `answer` is
    the text of its last turn, `vote` what counts for a majority, `evaluated` what a call told."""

    id: EpisodeId
    outcome: Outcome
    stop_reason: StopReason
    trajectories: list[TrajectoryMeta]
    reward: float = 0.0
    metrics: dict[str, float] = {}
    error: str | None = None
    wall_s: float = 0.0
    answer: str = ""
    vote: str = ""
    facts: EpisodeFacts = EpisodeFacts()
    evaluated: Evaluated | None = None

    @property
    def layouts(self) -> list[tuple[Column, ...]]:
        """Of its trajectories."""
        return [meta.layout for meta in self.trajectories]


class EpisodeSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What scoring sees of an episode. `answer` as in its report; `earned`: what each name did
    under which the policy played, empty where that is `policy` alone; `sampled`: tokens"""

    index: int
    outcome: Outcome
    stop_reason: StopReason
    reward: float
    metrics: dict[str, float]
    answer: str = ""
    earned: dict[str, float] = {}
    sampled: int = 0


class PayloadRef(msgspec.Struct, frozen=True, array_like=True):
    """Where stored bytes lie: store name, segment number, offset, length and xxh3_64."""

    store: str
    segment: int
    offset: int
    num_bytes: int
    xxh3: int


class TrajectoryRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trajectory of a lease: its facts and where its columns lie."""

    episode: EpisodeId
    meta: TrajectoryMeta
    payload: PayloadRef


class GroupRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group of a lease, of its `done` episodes in order of index: scored `rewards`, `metrics`,
    why each stopped, facts, rows of trajectories. `row`, `part`: the task, for a log function."""

    group: str
    mint: int
    task: str
    episodes: list[EpisodeId]
    rewards: list[float]
    metrics: list[dict[str, float]]
    trajectories: list[TrajectoryRow]
    stop_reasons: list[StopReason] = []
    facts: list[EpisodeFacts] = []
    row: dict[str, Any] = {}
    part: str = ""


class LeaseHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rollout batch handed to the learner. Leases are numbered 1, 2, 3, ... and stepped in order.
    `stats` are the buffer's own figures at the moment of the lease."""

    number: int
    groups: list[GroupRows]
    last: bool = False
    stats: dict[str, float] = {}


class VersionRow(msgspec.Struct, frozen=True, array_like=True):
    """Weights that engines may hold: what they grew from, and how many iterations they hold.
    `recipe`: a number for what those since the parent were trained by; 0: not known, or several."""

    version: int
    parent: int | None
    iteration: int
    recipe: int = 0


class PermitStats(msgspec.Struct, frozen=True, array_like=True):
    """A worker's turn permits since its last report: the time-averaged share that was free while no
    turn waited (0..1), the time it covers, and what is in use and queued now."""

    free_share: float = 0.0
    window_s: float = 0.0
    in_use: int = 0
    queued: int = 0


#: What an engine does of a turn: all of it, its prompt, or what is sampled after its first token.
EngineKind = Literal["regular", "prefill", "decode", "evaluation"]


class EngineAddress(msgspec.Struct, frozen=True):
    """An SGLang engine. `num_ranks`: in a weight push; `bootstrap_port`: where decoders meet it."""

    name: str
    url: str
    kind: EngineKind = "regular"
    num_ranks: int = 1
    bootstrap_port: int | None = None


class PushReport(msgspec.Struct, frozen=True):
    """What a weight push cost, in seconds, and how many bytes went to each engine."""

    version: int
    pause_s: float
    total_s: float
    num_bytes: int
    engines: tuple[str, ...]


#: Bytes of what is saved of an episode between two turns; a larger one is not kept.
MAX_SNAPSHOT_BYTES = 8 * 1024**2


class Generation(msgspec.Struct, frozen=True):
    """What an engine sampled in one turn: ids with one log-probability (of the distribution that
    was sampled from, in nats), one weight version, and one token of each optional column
    (`columns`: a buffer of each, which may begin with tokens of the prompt).

    `finish_reason`: stop, length or abort. `matched`: the stop id, where one ended the turn.
    `num_retractions`: pushes that it went on through; `num_resamples`: times that the turn was
    given up for a push before, and sampled again.
    """

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    matched: int | None = None
    columns: dict[Column, Any] = {}
    num_retractions: int = 0
    num_resamples: int = 0


class TurnClient(Protocol):
    """Where an episode's turns are sampled; implemented by `agentrl.serving`. A client without
    engines need only `generate`."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """Sample one turn after `input_ids`. The lowest `priority` gets a free permit first.

        Raises EngineError (retryable) when no engine answered in time, TokenError for ids that no
        engine may be sent.
        """

    def new_weights(self, version: int, /) -> None:
        """All engines serve `version` now: what must not go on under it is sampled again."""
        return

    def moved(self, engines: Sequence[EngineAddress], /) -> None:
        """Where all engines are, once one has moved."""
        return

    def permit_stats(self) -> PermitStats:
        """Permits since the last call."""
        return PermitStats()


class WeightSink(Protocol):
    """Where the learner publishes weights; implemented by `agentrl.serving`."""

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        """Send all `tensors` (HF name, tensor) as `version` to every engine, or raise PushError.
        Looks at what engines hold before and after, as `inspect` does."""

    def inspect(self) -> None:
        """Raise HealthError that names an engine whose weights are not those of its last push."""

    def verify(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Raise PushError unless every engine holds exactly `tensors`."""

    def moved(self, engines: Sequence[EngineAddress], /) -> None:
        """Where engines are from now on. One that is new, or elsewhere than before, takes part in
        the first publish that finds it ready; one that is not named stays as it is."""

    def close(self) -> None: ...


class TaskSource(Protocol):
    """Where tasks come from; implemented by `agentrl.envs`. Resumable by cursor."""

    def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on, in an order fixed by the source's seed."""
