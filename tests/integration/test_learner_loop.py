"""The learner's loop against a full double of everything around it.

`World` is the engine, the agents and the buffer in one: it samples real episodes from the weights
that were last published and hands them out as leases. `ToyBackend` is a complete `TrainBackend`: a
bigram model under plain autograd, with collectives between threads when there are several ranks.
"""

import math
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.clock import ManualClock
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError, HealthError, PeerLostError
from agentrl.learner.backend import LossFn, MicroBatch, StepResult
from agentrl.learner.exchange import LearnerPeer
from agentrl.learner.loop import LearnerOutcome, run_learner
from agentrl.learner.metrics import AGE_METRICS, METRIC_NAMES
from agentrl.types import (
    COLUMNS,
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    PushReport,
    SpanKind,
    TrajectoryMeta,
    TrajectoryRow,
    VersionRow,
)
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import (
    Fetch,
    Lease,
    LeaseRequest,
    Message,
    NoMoreLeases,
    Published,
    Retire,
    Rows,
    Stepped,
    Welcome,
)

VOCABULARY, GOAL, GROUP_SIZE = 8, 5, 4


class ToyGroup:
    """Collectives between the threads of several ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


class ToyBackend:
    """A bigram table trained by SGD."""

    def __init__(self, group: ToyGroup, rank: int, lr: float = 10.0) -> None:
        self.data_parallel_rank, self.data_parallel_size = rank, group.size
        self.is_source = rank == 0
        self.table = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)
        self.num_passes = self.num_steps = 0
        self.not_finite_at: set[int] = set()
        self.on_save: Callable[[Path], None] = lambda _: None
        self._initial = self.table.detach().clone()
        self._group = group
        self._lr = lr

    def _scores(self, table: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs_TV = torch.log_softmax(table[batch.tokens_T], dim=-1)
        entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
        return logprobs_TV.gather(1, batch.labels_T[:, None]).squeeze(1), entropy_T

    def logprobs(
        self, micro_batches: Sequence[MicroBatch], *, reference: bool = False
    ) -> list[Tensor]:
        self.num_passes += 1
        table = self._initial if reference else self.table.detach()
        return [self._scores(table, batch)[0] for batch in micro_batches]

    def step(self, micro_batches: Sequence[MicroBatch], loss_fn: LossFn) -> StepResult:
        gradient = torch.zeros_like(self.table)
        metrics: dict[str, float] = {}
        for batch in micro_batches:
            loss, sums = loss_fn(batch, *self._scores(self.table, batch))
            if self.num_steps in self.not_finite_at:
                loss = loss * math.nan
            gradient += torch.autograd.grad(loss, self.table)[0]
            _accumulate(metrics, sums)
        self.num_steps += 1
        gathered = self._group.gather(self.data_parallel_rank, (gradient, metrics))
        gradient = torch.stack([rank_gradient for rank_gradient, _ in gathered]).sum(0)
        total: dict[str, float] = {}
        for _, rank_metrics in gathered:
            _accumulate(total, rank_metrics)
        norm = float(gradient.norm())
        if math.isfinite(norm):
            with torch.no_grad():
                self.table -= self._lr * gradient
        return StepResult(not math.isfinite(norm), norm, self._lr, total)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        self._group.gather(self.data_parallel_rank, None)
        yield "table", self.table.detach().clone()

    def save_hf(self, directory: Path) -> None:
        self.on_save(directory)

    def save_state(self, directory: Path) -> None:
        if self.is_source:
            (directory / "table").write_bytes(self.table.detach().numpy().tobytes())
        self._group.gather(self.data_parallel_rank, None)

    def load_state(self, directory: Path) -> None:
        data = bytearray((directory / "table").read_bytes())
        with torch.no_grad():
            self.table.copy_(torch.frombuffer(data, dtype=self.table.dtype).view_as(self.table))

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        found = self._group.gather(self.data_parallel_rank, data)[0]
        assert isinstance(found, bytes)
        return found

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        gathered = self._group.gather(self.data_parallel_rank, list(values))
        return [math.fsum(column) for column in zip(*gathered, strict=True)]

    def close(self) -> None: ...


def _accumulate(total: dict[str, float], sums: dict[str, Tensor] | dict[str, float]) -> None:
    for name, value in sums.items():
        total[name] = total.get(name, 0.0) + float(value)


class World:
    """Engine, agents and buffer in one.

    lease_sizes: groups of each lease. lag: how many versions behind the newest it samples. shift:
    added to every engine log-probability. claim: the version it reports instead of the true one.
    `delivered` holds what the learner delivered, and the path of a save in its place. A lease that
    was given once is given again as it was. `dies_after`: iteration whose report never leaves the
    learner.
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
    ) -> None:
        self.tables: dict[int, Tensor] = {}
        self.pushes: list[int] = []
        self.delivered: list[Message | Path] = []
        self.damaged: set[str] = set()
        self.num_flushes = 0
        self.dies_after: int | None = None
        self._given: dict[int, Lease] = {}
        self._lease_sizes = lease_sizes
        self._lag = lag
        self._shift = shift
        self._claim = claim
        self._mark_last = mark_last
        self._random = np.random.default_rng(seed)
        self._payloads: dict[int, tuple[str, list[bytes]]] = {}

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.delivered if isinstance(message, kind)]

    # ---- WeightSink ----

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> PushReport:
        self.pushes.append(version)
        self.tables[version] = dict(tensors)["table"]
        return PushReport(version, pause_s=0.1, total_s=0.2, num_bytes=256, engines=("e",))

    def verify(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        newest = self.tables[max(self.tables)]
        assert all(torch.equal(newest, tensor) for _, tensor in tensors)

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
        self.delivered.append(message)

    @property
    def welcome(self) -> Welcome:
        return Welcome(1, 1.0, [message.row for message in self.of(Published)])

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
        rows, rewards = zip(
            *(self._episode(EpisodeId(name, i)) for i in range(GROUP_SIZE)), strict=True
        )
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
        columns = [
            np.array(column, dtype=dtype).tobytes()
            for column, dtype in zip(
                (tokens, kinds, logprobs, versions, turns), COLUMNS.values(), strict=True
            )
        ]
        offset = len(self._payloads)
        self._payloads[offset] = (str(episode), columns)
        meta = TrajectoryMeta(len(tokens), len(sampled), 2, reward, [(version, len(sampled))])
        return TrajectoryRow(episode, meta, PayloadRef("s", 0, offset, 100, 0)), reward


class WorldPeer:
    """One rank's connection to the world."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self._world = world
        self._clock = clock
        self._answers: deque[tuple[Message, list[bytes]]] = deque()

    def send(self, message: Message, /) -> None:
        if isinstance(message, LeaseRequest):
            self._answers.append((self._world.lease(message.number), []))
        else:
            assert isinstance(message, Fetch)
            self._answers.append(self._world.rows(message))

    @property
    def welcome(self) -> Welcome:
        return self._world.welcome

    def deliver(self, message: Message, /) -> None:
        self._world.take(message)

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        if not self._answers:
            raise TimeoutError
        self._clock.advance(1.0)
        return self._answers.popleft()

    def flush(self, timeout_s: float, /) -> None:
        self._world.num_flushes += 1


def learn(
    world: World,
    *,
    num_ranks: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    should_republish: Callable[[], bool] = lambda: False,
    not_finite_at: Iterable[int] = (),
    **flags: Any,
) -> tuple[LearnerOutcome, list[ToyBackend]]:
    with tempfile.TemporaryDirectory() as folder:
        defaults: dict[str, Any] = {"save": folder, "save_hf": "out", "max_staleness": 8}
        cfg = RunConfig(**({"max_tokens_per_gpu": 32} | defaults | flags))
        return learn_as(cfg, world, num_ranks, should_stop, should_republish, not_finite_at)


def learn_as(
    cfg: RunConfig,
    world: World,
    num_ranks: int,
    should_stop: Callable[[], bool],
    should_republish: Callable[[], bool],
    not_finite_at: Iterable[int],
) -> tuple[LearnerOutcome, list[ToyBackend]]:
    group = ToyGroup(num_ranks)
    backends = [ToyBackend(group, rank) for rank in range(num_ranks)]

    def run(backend: ToyBackend) -> LearnerOutcome:
        backend.not_finite_at = set(not_finite_at)
        if backend.is_source:
            backend.on_save = world.delivered.append
        clock = ManualClock()
        sink = world if backend.is_source else None
        peer = WorldPeer(world, clock)
        return run_learner(
            cfg,
            backend,
            peer,
            sink,
            clock=clock,
            should_stop=should_stop,
            should_republish=should_republish,
        )

    with ThreadPoolExecutor(num_ranks) as threads:
        outcomes = list(threads.map(run, backends))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0], backends


def goal_probability(world: World, version: int) -> float:
    return float(torch.softmax(world.tables[version], -1)[[1, 2, GOAL], GOAL].mean())


def accepts(peer: BlockingPeer) -> LearnerPeer:
    """mypy checks here that the real connection fits the loop."""
    return peer


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"num_steps_per_rollout": 2},
        {"update_weights_interval": 2},
        {"calculate_per_token_loss": True},
    ],
    ids=str,
)
def test_training_makes_the_rewarded_token_more_likely(flags: dict[str, Any]) -> None:
    world = World([8] * 20)
    outcome, _ = learn(world, **flags)
    assert goal_probability(world, 0) == pytest.approx(1 / VOCABULARY)
    assert goal_probability(world, outcome.version) > 0.8
    rewards = [step.metrics["rollout/reward_mean"] for step in world.of(Stepped)]
    assert rewards[-1] > rewards[0] + 0.5


def test_the_buffer_hears_every_event_once_and_in_order() -> None:
    world = World([3, 3, 1])
    outcome, (backend,) = learn(world)
    expected: list[tuple[object, ...]] = [("published", VersionRow(0, None, 0), 0)]
    for k in (1, 2, 3):
        expected += [("stepped", k), ("published", VersionRow(k, k - 1, k), k)]
    assert [_brief(message) for message in world.delivered] == [
        *expected,
        ("saved", Path("out")),
        ("retire", 3),
    ]
    assert world.num_flushes == 1
    assert outcome == LearnerOutcome(3, 0, 3, "the last lease is trained", Path("out"))
    assert backend.num_passes == 0, "one step needs no pass of its own"


def _brief(message: Message | Path) -> tuple[object, ...]:
    if isinstance(message, Path):
        return ("saved", message)
    if isinstance(message, Published):
        return ("published", message.row, message.through)
    if isinstance(message, Stepped):
        return ("stepped", message.number)
    assert isinstance(message, Retire)
    return ("retire", message.through)


def test_a_longer_interval_publishes_every_second_iteration_and_the_rest_at_the_end() -> None:
    world = World([2] * 5, mark_last=False)
    outcome, _ = learn(world, update_weights_interval=2)
    assert [(p.row.version, p.through) for p in world.of(Published)] == [
        (0, 0),
        (1, 2),
        (2, 4),
        (3, 5),
    ]
    ages = [step.metrics["train/age_histogram"] for step in world.of(Stepped)]
    num_sampled = 2 * GROUP_SIZE * 6
    assert ages == [[num_sampled], [0, num_sampled]] * 2 + [[num_sampled]]
    assert outcome.reason == "tasks exhausted"


def test_several_steps_take_one_pass_for_the_policy_at_the_start() -> None:
    world = World([4, 4, 1])
    _, (backend,) = learn(world, num_steps_per_rollout=2)
    steps = [step.metrics["train/num_steps"] for step in world.of(Stepped)]
    assert steps == [2, 2, 1], "a single group cannot be split"
    assert backend.num_passes == 2
    first = world.of(Stepped)[0].metrics
    assert first["train/logprob_diff_max"] < 1e-5, "both steps compare with the start, not between"


def test_the_metrics_are_the_declared_ones_and_say_what_happened() -> None:
    world = World([4] * 3, lag=1)
    learn(world, max_staleness=3, use_kl_loss=True, kl_loss_coef=0.01, kl_loss_type="k3")
    by_age = {f"{name}/age_{age}" for name in AGE_METRICS for age in range(4)}
    declared = {*METRIC_NAMES, *by_age, "rollout/tool_calls"}
    costs = {name for message in world.of(Published) for name in message.metrics}
    seen = {name for step in world.of(Stepped) for name in step.metrics} | costs
    assert seen <= declared
    assert {*METRIC_NAMES, "rollout/tool_calls"} - {"train/nll"} <= seen
    last = world.of(Stepped)[-1]
    assert last.metrics["train/age_histogram"] == [0, 96]
    assert last.metrics["train/age_max_trained"] == 1
    assert last.metrics["train/num_tokens"] == 96
    assert last.metrics["train/masked_token_share"] == 0
    assert last.metrics["rollout/response_length_mean"] == 6
    assert last.metrics["rollout/turns_mean"] == 2
    assert 0 < last.metrics["train/ess"] < 1
    assert last.metrics["train/mismatch_kl"] == pytest.approx(
        last.metrics["train/mismatch_kl/age_1"]
    )
    assert "train/logprob_diff_on_policy" not in last.metrics
    assert last.metrics["train/logprob_diff"] > 1e-3
    assert (last.wait_s, last.iteration_s) == (1.0, 2.0)
    assert last.metrics["perf/learner_idle_share"] == 0.5
    for name, value in last.metrics.items():
        assert isinstance(value, list) or math.isfinite(value), name


def test_tokens_beyond_the_bound_change_no_weight() -> None:
    world = World([4] * 5, lag=100)
    learn(world, max_staleness=1)
    steps = world.of(Stepped)
    assert [step.old_share for step in steps] == [0, 0, 1, 1, 1]
    assert [step.metrics["train/masked_turn_share"] for step in steps] == [0, 0, 1, 1, 1]
    assert not torch.equal(world.tables[1], world.tables[2])
    for version in (3, 4, 5):
        assert torch.equal(world.tables[version], world.tables[2])


def test_ranks_share_a_lease_and_reach_the_weights_of_a_single_rank() -> None:
    one, three = World([5, 5, 1], seed=3), World([5, 5, 1], seed=3)
    flags: dict[str, Any] = {"num_steps_per_rollout": 2, "use_kl_loss": True, "kl_loss_coef": 0.1}
    learn(one, **flags)
    learn(three, num_ranks=3, **flags)
    torch.testing.assert_close(three.tables[1], one.tables[1], rtol=1e-4, atol=1e-5)
    mine, theirs = one.of(Stepped)[0].metrics, three.of(Stepped)[0].metrics
    assert theirs.keys() == mine.keys()
    for name, value in mine.items():
        assert theirs[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_an_iteration_is_skipped_only_when_none_of_its_steps_is_finite() -> None:
    world = World([4] * 3)
    outcome, _ = learn(world, num_steps_per_rollout=2, not_finite_at={0, 2, 3})
    steps = world.of(Stepped)
    assert [step.skipped for step in steps] == [False, True, False]
    assert [step.metrics["train/num_skipped_steps"] for step in steps] == [1, 2, 0]
    assert outcome.num_skipped == 1
    assert torch.equal(world.tables[1], world.tables[2])
    assert "train/loss" not in steps[1].metrics


def test_a_damaged_payload_leaves_the_loss_and_is_counted() -> None:
    world = World([2, 2])
    world.damaged = {"1-0/0#0", "1-1/2#0"}
    learn(world)
    first, second = (step.metrics for step in world.of(Stepped))
    assert first["train/num_missing_trajectories"] == 2
    assert first["train/num_tokens"] == 6 * 6
    assert first["train/masked_token_share"] == pytest.approx(2 / 8)
    assert second["train/num_missing_trajectories"] == 0


def test_a_request_to_stop_ends_between_iterations_without_a_push() -> None:
    world = World([2] * 9)
    outcome, _ = learn(
        world, update_weights_interval=2, should_stop=lambda: len(world.of(Stepped)) == 3
    )
    assert [p.through for p in world.of(Published)] == [0, 2]
    assert world.delivered[-2:] == [Path("out"), Retire(through=3)]
    assert outcome.reason == "the learner was asked to stop"


def test_an_engine_with_other_weights_stops_the_first_iteration_with_the_numbers() -> None:
    world = World([2] * 3, shift=0.05)
    with pytest.raises(HealthError, match=r"48 on-policy tokens is 0\.05 in the mean"):
        learn(world)
    assert [type(message) for message in world.delivered] == [Published]


def test_a_token_of_an_unknown_version_stops_the_learner() -> None:
    world = World([2], claim=7)
    with pytest.raises(DataError, match="unknown version 7 in lease 1"):
        learn(world)


def test_a_learner_without_a_place_to_save_is_refused_before_it_publishes() -> None:
    world = World([2])
    with pytest.raises(ConfigError, match="--save-hf or --run-id"):
        learn(world, save_hf=None)
    assert not world.delivered


def test_another_reference_model_stops_the_first_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherReference(ToyBackend):
        def __init__(self, group: ToyGroup, rank: int, lr: float = 10.0) -> None:
            super().__init__(group, rank, lr)
            self._initial[:, GOAL] += 1.0

    monkeypatch.setitem(globals(), "ToyBackend", OtherReference)
    with pytest.raises(HealthError, match=r"reference model is .* first optimizer step"):
        learn(World([2]), num_ranks=2, num_steps_per_rollout=2, use_kl_loss=True, kl_loss_coef=0.1)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("save_interval", [1, 3])
@pytest.mark.parametrize("dies_after", [1, 2, 5, 7])
def test_a_learner_that_died_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, dies_after: int, save_interval: int, num_ranks: int
) -> None:
    _, unharmed = learn(World([2] * 7), num_ranks=num_ranks)
    world = World([2] * 7)
    world.dies_after = dies_after
    flags: dict[str, Any] = {
        "save": str(tmp_path),
        "save_interval": save_interval,
        "num_ranks": num_ranks,
    }
    if num_ranks == 1:  # the other rank of two would wait for the dead one
        with pytest.raises(PeerLostError):
            learn(world, **flags)
    else:
        world.dies_after = None
        stops = iter([False] * dies_after)
        learn(world, should_stop=lambda: next(stops, True), **flags)
    world.dies_after = None
    restored = (dies_after - 1) // save_interval * save_interval if num_ranks == 1 else dies_after
    versions = len(world.of(Published))
    outcome, resumed = learn(world, **flags)
    assert torch.equal(resumed[0].table, unharmed[0].table)
    assert outcome.num_iterations == 7
    again = world.of(Published)[versions].row
    assert (again.version, again.iteration) == (versions, restored)
    assert torch.equal(world.tables[again.version], world.tables[restored])


def test_the_buffer_may_forget_what_the_checkpoint_before_the_last_covers() -> None:
    world = World([2] * 7)
    learn(world, save_interval=2)
    assert [message.through for message in world.of(Retire)] == [2, 4, 7]


def test_an_engine_that_came_late_gets_the_newest_weights_under_their_own_number() -> None:
    world = World([2] * 3)
    asked = iter([True, False])
    learn(world, should_republish=lambda: next(asked, False))
    assert world.pushes == [0, 0, 1, 2, 3]
    assert [message.row.version for message in world.of(Published)] == [0, 1, 2, 3]


def test_weights_that_moved_on_reach_a_late_engine_as_another_version() -> None:
    world = World([2] * 4)
    asked = iter([False, True, False])
    learn(world, update_weights_interval=4, should_republish=lambda: next(asked, False))
    rows = [message.row for message in world.of(Published)]
    assert [(row.version, row.iteration) for row in rows] == [(0, 0), (1, 1), (2, 4)]


def test_another_runs_checkpoints_are_not_continued(tmp_path: Path) -> None:
    learn(World([2] * 2), save=str(tmp_path), run_id="first")
    world = World([2] * 2)
    with pytest.raises(ConfigError, match="of the run first, not of second"):
        learn(world, save=str(tmp_path), run_id="second")
    assert world.delivered == []


def test_the_weights_of_another_run_may_be_taken_along(tmp_path: Path) -> None:
    _, first = learn(World([2] * 2), save=str(tmp_path / "a"), run_id="first")
    world = World([2])
    learn(world, save=str(tmp_path / "b"), load=str(tmp_path / "a"), run_id="second")
    assert torch.equal(world.tables[0], first[0].table)
    assert world.of(Published)[0].row == VersionRow(0, None, 0)


def test_an_evaluation_is_of_its_model_whatever_checkpoints_its_run_names(tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    learn(World([2] * 2), save=folder, run_id="first")
    world = World([2])
    alone: dict[str, Any] = {"run_dir": str(tmp_path), "run_id": "alone", "eval_only": True}
    learn(world, save=folder, load=folder, **alone)
    assert not world.tables[0].any()
