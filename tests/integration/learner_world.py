"""A full double of everything around the learner's loop.

`World` is the engine, the agents and the buffer in one: it samples real episodes from the weights
that were last published and hands them out as leases.
"""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms.base import Algorithm
from agentrl.algorithms.load import load_algorithm
from agentrl.columns import COLUMNS
from agentrl.config.run import RunConfig
from agentrl.errors import PeerLostError
from agentrl.learner.loop import LearnerOutcome, run_learner
from agentrl.learner.profiling import Profiler
from agentrl.types import (
    EngineAddress,
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    PushReport,
    SpanKind,
    TrajectoryMeta,
    TrajectoryRow,
)
from agentrl.wire.messages import (
    AnnounceVersion,
    Fetch,
    Lease,
    LeaseRequest,
    Message,
    NoMoreLeases,
    PushDone,
    Republish,
    Retire,
    Rows,
    Stepped,
    Welcome,
)
from tests.collectives import Threads
from tests.integration.toy_backend import VOCABULARY, ToyBackend
from tests.manual_clock import ManualClock

GOAL, GROUP_SIZE = 5, 4


class World:
    """Engine, agents and buffer in one.

    lease_sizes: groups of each lease. lag: how many versions behind the newest it samples. shift:
    added to every engine log-probability. claim: the version it reports instead of the true one.
    `delivered` holds what the learner delivered, and the path of a save in its place. A lease that
    was given once is given again as it was. `dies_after`: iteration whose report never leaves the
    learner. `shown`: groups are one dialogue each, which nobody sampled (`sft_loss`).
    `dies_at`: point that kills the learner, and how many iterations it reports before.
    """

    def __init__(
        self,
        lease_sizes: Sequence[int],
        *,
        lag: int = 0,
        shift: float = 0.0,
        claim: int | None = None,
        mark_last: bool = True,
        seed: int = 0,
        shown: bool = False,
    ) -> None:
        self.tables: dict[int, Tensor] = {}
        self.pushes: list[int] = []
        self.delivered: list[Message | Path] = []
        self.damaged: set[str] = set()
        self.num_flushes = 0
        self.flush_limits_s: list[float] = []
        #: The push that is asked for at the first question for each of these leases.
        self.republish: dict[int, int] = {}
        self.dies_after: int | None = None
        self.dies_at: tuple[str, int] | None = None
        self._given: dict[int, Lease] = {}
        self._lease_sizes = lease_sizes
        self._lag = lag
        self._shift = shift
        self._claim = claim
        self._mark_last = mark_last
        self._shown = shown
        self._random = np.random.default_rng(seed)
        self._payloads: dict[int, tuple[str, list[bytes]]] = {}

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.delivered if isinstance(message, kind)]

    def reached(self, point: str) -> None:
        """The learner is there."""
        wanted, reported = self.dies_at or ("", 0)
        if point == wanted and len(self.of(Stepped)) >= reported:
            self.dies_at = None
            raise PeerLostError(f"killed at {point}")

    # ---- WeightSink ----

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> PushReport:
        self.reached("push")
        self.pushes.append(version)
        self.tables[version] = dict(tensors)["table"]
        return PushReport(version, pause_s=0.1, total_s=0.2, num_bytes=256, engines=("e",))

    def inspect(self) -> None: ...

    def verify(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        newest = self.tables[max(self.tables)]
        assert all(torch.equal(newest, tensor) for _, tensor in tensors)

    def moved(self, engines: Sequence[EngineAddress], /) -> None: ...

    def close(self) -> None: ...

    # ---- buffer ----

    def lease(self, number: int) -> Lease | NoMoreLeases:
        if number > len(self._lease_sizes):
            return NoMoreLeases(after=number - 1, reason="tasks exhausted")
        if number not in self._given:
            groups = [self._group(f"{number}-{g}") for g in range(self._lease_sizes[number - 1])]
            last = self._mark_last and number == len(self._lease_sizes)
            self._given[number] = Lease(LeaseHeader(number, groups, last=last))
        return self._given[number]

    def take(self, message: Message) -> None:
        if isinstance(message, Stepped) and message.number == self.dies_after:
            raise PeerLostError("killed")
        self.reached(type(message).__name__)
        self.delivered.append(message)

    @property
    def welcome(self) -> Welcome:
        rows = {m.row.version: m.row for m in (*self.of(AnnounceVersion), *self.of(PushDone))}
        retired = max((message.through for message in self.of(Retire)), default=0)
        return Welcome(1, 1.0, [rows[v] for v in sorted(rows)], retired_through=retired)

    def flush(self) -> None:
        self.reached("flush")
        self.num_flushes += 1

    def rows(self, fetch: Fetch) -> tuple[Rows, list[bytes]]:
        columns: list[bytes] = []
        missing = []
        for index, payload in enumerate(fetch.payloads):
            name, stored = self._payloads[payload.offset]
            if name in self.damaged:
                missing.append(index)
                stored = [b""] * len(COLUMNS)
            columns += stored
        return Rows(fetch.request, missing), columns

    def _group(self, name: str) -> GroupRows:
        make, size = (self._dialogue, 1) if self._shown else (self._episode, GROUP_SIZE)
        rows, rewards = zip(*(make(EpisodeId(name, i)) for i in range(size)), strict=True)
        return GroupRows(
            group=name,
            mint=0,
            task=name,
            episodes=[row.episode for row in rows],
            rewards=list(rewards),
            metrics=[{"tool_calls": 1.0} for _ in rows],
            trajectories=list(rows),
        )

    def _episode(self, episode: EpisodeId) -> tuple[TrajectoryRow, float]:
        """Two turns with a tool's answer between them; the reward is the share of GOAL tokens."""
        version = max(0, max(self.tables) - self._lag)
        tokens, kinds, logprobs = [0, 1], [SpanKind.CONTROL] * 2, [0.0, 0.0]
        turns = [-1, -1]
        for turn in range(2):
            for _ in range(3):
                logprobs_V = torch.log_softmax(self.tables[version][tokens[-1]].double(), -1)
                tokens.append(int(self._random.choice(VOCABULARY, p=logprobs_V.exp().numpy())))
                kinds.append(SpanKind.SAMPLED)
                logprobs.append(float(logprobs_V[tokens[-1]]) + self._shift)
                turns.append(turn)
            tokens, kinds = [*tokens, 2], [*kinds, SpanKind.UNTRUSTED]
            logprobs, turns = [*logprobs, 0.0], [*turns, turn]
        sampled = [t for t, kind in zip(tokens, kinds, strict=True) if kind == SpanKind.SAMPLED]
        reward = sampled.count(GOAL) / len(sampled)
        version = version if self._claim is None else self._claim
        versions = [version if kind == SpanKind.SAMPLED else -1 for kind in kinds]
        meta = TrajectoryMeta(len(tokens), len(sampled), 2, reward, [(version, len(sampled))])
        return self._stored(episode, meta, (tokens, kinds, logprobs, versions, turns)), reward

    def _dialogue(self, episode: EpisodeId) -> tuple[TrajectoryRow, float]:
        """Two words of the user and three that are to be imitated, twice."""
        tokens = self._random.integers(0, VOCABULARY, 10).tolist()
        kinds = ([SpanKind.CONTROL] * 2 + [SpanKind.DEMONSTRATION] * 3) * 2
        turns = [-1] * 2 + [0] * 5 + [1] * 3
        meta = TrajectoryMeta(10, 0, 2, 0.0, [], num_demonstrated=6)
        return self._stored(episode, meta, (tokens, kinds, [0.0] * 10, [-1] * 10, turns)), 0.0

    def _stored(
        self, episode: EpisodeId, meta: TrajectoryMeta, columns: Sequence[Sequence[Any]]
    ) -> TrajectoryRow:
        data = [
            np.array(values, dtype=column.dtype).tobytes()
            for values, column in zip(columns, COLUMNS.values(), strict=True)
        ]
        offset = len(self._payloads)
        self._payloads[offset] = (str(episode), data)
        return TrajectoryRow(episode, meta, PayloadRef("s", 0, offset, 100, 0))


class Labels:
    """Engines whose weights stay as they are, under new numbers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        self._world.pushes.append(version)
        self._world.tables[version] = torch.zeros(VOCABULARY, VOCABULARY)
        return PushReport(version, 0.0, 0.1, 0, ("e",))

    def inspect(self) -> None: ...

    def verify(self, tensors: Iterable[tuple[str, Any]]) -> None: ...

    def moved(self, engines: Sequence[EngineAddress], /) -> None: ...

    def close(self) -> None: ...


class WorldPeer:
    """One rank's connection to the world."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self._world = world
        self._clock = clock
        self._answers: deque[tuple[Message, list[bytes]]] = deque()

    def send(self, message: Message, /) -> None:
        if isinstance(message, LeaseRequest):
            asked = self._world.republish.get(message.number, 0)
            if asked > message.republished:
                self._answers.append((Republish(asked), []))
                return
            self._answers.append((self._world.lease(message.number), []))
            self._world.reached("lease")
        else:
            assert isinstance(message, Fetch)
            self._world.reached("fetch")
            self._answers.append(self._world.rows(message))

    @property
    def welcome(self) -> Welcome:
        return self._world.welcome

    def deliver(self, message: Message, /) -> None:
        self._world.take(message)

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        if not self._answers:
            self._clock.advance(timeout_s)
            raise TimeoutError
        self._clock.advance(1.0)
        return self._answers.popleft()

    def flush(self, timeout_s: float, /) -> None:
        self._world.flush_limits_s.append(timeout_s)
        self._world.flush()


def learn(
    world: World,
    *,
    backend_class: type[ToyBackend] = ToyBackend,
    num_ranks: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    not_finite_at: Iterable[int] = (),
    config_class: type[RunConfig] = RunConfig,
    profiler: Profiler | None = None,
    **flags: Any,
) -> tuple[LearnerOutcome, list[ToyBackend]]:
    """Train on the world's leases, each rank in a thread; what they agree on, their backends."""
    group = Threads(num_ranks)
    backends = [backend_class(group, rank) for rank in range(num_ranks)]
    for backend in backends:
        backend.not_finite_at = set(not_finite_at)
    backends[0].on_save = world.delivered.append

    def run(algorithm: Algorithm, backend: ToyBackend) -> LearnerOutcome:
        clock = ManualClock()
        return run_learner(
            algorithm,
            backend,
            WorldPeer(world, clock),
            world if backend.is_source else None,
            clock=clock,
            should_stop=should_stop,
            profiler=profiler,
        )

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(num_ranks) as threads:
        defaults: dict[str, Any] = {
            "save": folder,
            "save_hf": "out",
            "max_staleness": 8,
            "max_tokens_per_gpu": 32,
        }
        cfg = config_class(**(defaults | flags))
        algorithms = [load_algorithm(cfg) for _ in backends]  # a module is imported by one thread
        outcomes = list(threads.map(run, algorithms, backends))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0], backends
