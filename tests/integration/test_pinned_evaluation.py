"""Evaluations beside training, over real sockets: the buffer is a process, the learner's loop runs
in a thread on a toy model, and agents sample with whatever version the engine holds.

No iteration ends before the evaluation of its first weights has begun, and no evaluation ends
before the next push is held back or made: so without a hold every score would mix versions.
"""

import io
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
import numpy as np
import pytest
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.buffer import BufferSettings, audit
from agentrl.clock import MonotonicClock
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.feeder import Feeder
from agentrl.cluster.requests import Requests
from agentrl.columns import COLUMNS
from agentrl.config.run import RunConfig
from agentrl.learner.backend import StepResult
from agentrl.learner.loop import LearnerOutcome, run_learner
from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.registry import Registry
from agentrl.types import (
    EngineAddress,
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    PushReport,
    SamplingParams,
    SpanKind,
    StopReason,
    Task,
    TrajectoryMeta,
)
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.frames import ColumnBuffer
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Event,
    Fetch,
    Finished,
    GroupScore,
    MayPush,
    Message,
    Refused,
    Rows,
    ScoreGroup,
    TaskCredit,
    Welcome,
)
from agentrl.wire.peer import BufferPeer, Received
from tests.collectives import Threads
from tests.integration.buffer_process import Server
from tests.integration.toy_backend import VOCABULARY, ToyBackend

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
QUESTIONS = [Task(f"q{i}", {}) for i in range(5)]


class Story:
    """What has happened, to be waited for: ("began", step), ("wanted", version)."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()
        self._changed = anyio.Event()
        self._token = anyio.lowlevel.current_token()

    def tell_from_thread(self, what: str, number: int) -> None:
        anyio.from_thread.run_sync(self.tell, what, number, token=self._token)

    def tell(self, what: str, number: int) -> None:
        self._told.add((what, number))
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, what: str, number: int) -> None:
        with anyio.fail_after(WAIT_S):
            while (what, number) not in self._told:
                await self._changed.wait()


class Engine:
    """Holds a version; a push wants the next."""

    def __init__(self, story: Story) -> None:
        self.version = -1
        self._story = story

    def publish(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> PushReport:
        list(tensors)
        self.version = version
        self._story.tell_from_thread("wanted", version)
        return PushReport(version, pause_s=0.0, total_s=0.0, num_bytes=1, engines=("e",))

    def inspect(self) -> None: ...

    def verify(self, tensors: Iterable[tuple[str, Tensor]]) -> None: ...

    def moved(self, engines: Sequence[EngineAddress], /) -> None: ...

    def close(self) -> None: ...


class Model(ToyBackend):
    """Learns nothing; ends no iteration before the evaluation of its first weights has begun."""

    def __init__(self, story: Story, interval: int) -> None:
        super().__init__(Threads(1), 0, lr=0.0)
        self._story, self._interval = story, interval

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        done = self.num_steps
        if done and done % self._interval == 0:
            anyio.from_thread.run(self._story.wait, "began", done)
        return super().step(model, micro_batches, loss_fn, lr_scale)


class LearnerPeer(BlockingPeer):
    """Tells of every push that is held back: a fetch of nothing follows the question whether it may
    go, and is answered first."""

    story: Story
    asked = -1

    def send(self, message: Message, columns: Sequence[ColumnBuffer] = ()) -> None:
        super().send(message, columns)
        if isinstance(message, MayPush):
            self.asked = message.version
            super().send(Fetch(0, []))

    def receive(self, timeout_s: float) -> Received:
        message, columns = super().receive(timeout_s)
        if message == Rows(0):
            self.story.tell_from_thread("wanted", self.asked)
        return message, columns


class Agents:
    """A worker. An evaluation episode beside training ends when the next push is wanted."""

    def __init__(self, peer: BufferPeer, engine: Engine, story: Story) -> None:
        self._peer, self._engine, self._story = peer, engine, story
        self.playing: set[EpisodeId] = set()

    async def run(self) -> None:
        await self._peer.send(Capacity(16))
        async with anyio.create_task_group() as episodes:
            while True:
                message, _ = await self._peer.receive()
                match message:
                    case Welcome():
                        await self._peer.send(Capacity(16))
                    case Assign():
                        self.playing |= {episode.id for episode in message.episodes}
                        for episode in message.episodes:
                            episodes.start_soon(self._play, episode)
                    case Cancel():
                        self.playing -= set(message.episodes)
                    case ScoreGroup():
                        rewards = [summary.reward for summary in message.episodes]
                        await self._peer.deliver(GroupScore(message.group, rewards))

    async def _play(self, episode: EpisodeAssignment) -> None:
        first = self._engine.version
        _, _, about = episode.id.group.partition("@")
        step, _, mode = about.rpartition("-")[0].partition("-")
        if mode == "beside":
            self._story.tell("began", int(step))
            await self._story.wait("wanted", int(step) + 1)
        if episode.id in self.playing:
            self.playing.discard(episode.id)
            report, columns = played(episode.id, [first, self._engine.version])
            await self._peer.deliver(Finished(report), columns)


def played(id: EpisodeId, versions: list[int]) -> tuple[EpisodeReport, list[Any]]:
    """A prompt of one token and a sampled token of each version."""
    size = len(versions)
    values = {
        "tokens": [0, *range(1, size + 1)],
        "kinds": [SpanKind.CONTROL, *[SpanKind.SAMPLED] * size],
        "logprobs": [0.0, *[-math.log(VOCABULARY)] * size],
        "versions": [-1, *versions],
        "turns": [-1, *[0] * size],
    }
    counts = [(version, versions.count(version)) for version in sorted(set(versions))]
    meta = TrajectoryMeta(size + 1, size, 1, float(id.index), counts)
    report = EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta], meta.reward)
    return report, [np.array(values[name], dtype=c.dtype) for name, c in COLUMNS.items()]


class Source:
    """Tasks without an end."""

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        for position in count(cursor):
            yield Task(f"t{position}", {})


class Run:
    """One run in `folder`; `scores` are the eval lines of its metrics.jsonl."""

    def __init__(self, folder: Path, **flags: Any) -> None:
        self.folder = folder
        (folder / "run").mkdir()
        self.config = RunConfig(
            rollout_batch_size=2,
            n_samples_per_prompt=2,
            max_tokens_per_gpu=32,
            sglang_server_concurrency=8,
            save=str(folder / "save"),
            save_hf=str(folder / "hf"),
            **flags,
        )
        address = f"ipc://{folder}/b.sock"
        settings = BufferSettings.from_config(self.config, address, SamplingParams())
        self.settings = msgspec.structs.replace(settings, heartbeat_s=0.2, liveness_s=60.0)
        self.server = Server(self.settings, folder / "run")
        self.state, self.story = RunState(), Story()
        self.engine = Engine(self.story)

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = (self.folder / "run" / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    @property
    def scores(self) -> list[tuple[int, int, int, int]]:
        """Step, oldest version, newest version and episodes of each score."""
        told = [(line["step"], line["eval"]["heldout"]) for line in self.lines if "eval" in line]
        return [(step, s["version_min"], s["version_max"], s["n"]) for step, s in told]

    async def conduct(self) -> LearnerOutcome:
        """From the first push to the last evaluation."""
        config = self.config
        registry = Registry(REGISTRY, strict=True)
        clock, stream = MonotonicClock(), io.StringIO()
        run_dir = self.folder / "run"
        with Recorder(run_dir, config, clock, stream=stream, registry=registry) as recorder:
            async with (
                self._conversation(recorder) as evaluator,
                anyio.create_task_group() as tasks,
            ):
                ended: list[LearnerOutcome] = []
                tasks.start_soon(self._learn, ended)
                await self.state.wait(lambda state: state.version is not None)
                await evaluator.evaluate()
                self._feeder.open()
                assert config.eval_interval is not None
                tasks.start_soon(evaluator.evaluate_beside, config.eval_interval)
                await self.state.wait(
                    lambda s: s.learner_done and s.iteration == config.num_rollout
                )
                await evaluator.evaluate()
        return ended[0]

    @asynccontextmanager
    async def _conversation(self, recorder: Recorder) -> AsyncIterator[Evaluator]:
        address = self.settings.address
        async with (
            BufferPeer(address, role="driver", name="driver") as driver,
            BufferPeer(address, role="worker", name="worker-0") as worker,
            anyio.create_task_group() as tasks,
        ):
            requests = Requests(driver, self.state)
            sets = {"heldout": QUESTIONS}
            evaluator = Evaluator(self.config, sets, requests, self.state, recorder)
            self._feeder = Feeder(Source(), driver)
            tasks.start_soon(self._feeder.run)
            tasks.start_soon(self._receive, driver, requests, recorder)
            tasks.start_soon(Agents(worker, self.engine, self.story).run)
            yield evaluator
            tasks.cancel_scope.cancel()

    async def _receive(self, driver: BufferPeer, requests: Requests, recorder: Recorder) -> None:
        while True:
            message, _ = await driver.receive()
            match message:
                case TaskCredit():
                    await self._feeder.credit(message)
                case Event():
                    self.state.apply(message)
                    recorder.event(message.kind, message.data)
                case Welcome():
                    await requests.ask_again()
                case Refused(reason):
                    raise AssertionError(reason)

    async def _learn(self, ended: list[LearnerOutcome]) -> None:
        ended.append(await anyio.to_thread.run_sync(self._train))
        self.state.learner_done = True
        self.state.notify()

    def _train(self) -> LearnerOutcome:
        assert self.config.eval_interval is not None
        model = Model(self.story, self.config.eval_interval)
        peer = LearnerPeer(self.settings.address, role="learner", name="learner-0")
        peer.story = self.story
        with peer:
            return run_learner(
                load_algorithm(self.config), model, peer, self.engine, clock=MonotonicClock()
            )


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Begins a run; its buffer ends with the test."""
    runs: list[Run] = []

    def make(**flags: Any) -> Run:
        runs.append(Run(tmp_path, **flags))
        return runs[-1]

    yield make
    for run in runs:
        run.server.end()


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_pinned_score_is_of_the_one_version_that_its_step_published(
    begin: Callable[..., Run], ahead: int
) -> None:
    run = begin(eval_mode="pinned", eval_interval=1, num_rollout=4, async_buffer_size=ahead)
    with anyio.fail_after(WAIT_S):
        outcome = await run.conduct()
    assert outcome.num_iterations == 4
    assert run.scores == [(step, step, step, len(QUESTIONS)) for step in range(5)]
    holds = [line["metrics"]["perf/eval_hold_s"] for line in run.lines if "metrics" in line]
    assert holds[0] == 0
    assert min(holds[1:]) > 0


async def test_a_score_beside_training_mixes_versions_and_says_so(
    begin: Callable[..., Run],
) -> None:
    """Else the test above could not fail."""
    run = begin(eval_mode="beside", eval_interval=1, num_rollout=4, async_buffer_size=2)
    with anyio.fail_after(WAIT_S):
        await run.conduct()
    beside = [(step, step, step + 1, len(QUESTIONS)) for step in (1, 2, 3)]
    assert run.scores == [(0, 0, 0, len(QUESTIONS)), *beside, (4, 4, 4, len(QUESTIONS))]


async def test_a_buffer_that_dies_in_the_midst_of_a_hold_neither_stops_the_run_nor_mixes_a_score(
    begin: Callable[..., Run],
) -> None:
    run = begin(eval_mode="pinned", eval_interval=2, num_rollout=3, async_buffer_size=1)

    async def die() -> None:
        await run.story.wait("wanted", 3)
        run.server.end_and_restart()

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(die)
            outcome = await run.conduct()
    assert outcome.num_iterations == 3
    assert run.server.num_ends == 1
    assert [(step, n) for step, _, _, n in run.scores] == [(0, 5), (2, 5), (3, 5)]
    assert all(oldest == newest for _, oldest, newest, _ in run.scores)
    run.server.end()
    assert audit(run.folder / "run").problems == ()
