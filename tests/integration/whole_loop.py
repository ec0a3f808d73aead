"""A whole training run in one process: everything real but Ray, SGLang and the router.

side thread   buffer server, agent workers, feeder, and the engine's HTTP server
this thread   the learner: Megatron-core, one rank, weights by gloo
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.algorithms.load import load_algorithm
from agentrl.buffer import BufferSettings, run_buffer
from agentrl.clock import MonotonicClock
from agentrl.cluster.events import RunState
from agentrl.cluster.feeder import Feeder
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.config.sampling import training_turns
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_source
from agentrl.errors import PeerLostError
from agentrl.learner.loop import LearnerOutcome, run_learner
from agentrl.learner.megatron import MegatronBackend
from agentrl.serving.client import EngineClient
from agentrl.serving.routing import RoutedWeightSink
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, LeaseHeader
from agentrl.wire import messages
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import Drain, Event, Lease, Refused, Stepped, TaskCredit, Welcome
from agentrl.wire.peer import BufferPeer
from tests.integration.playing_engine import CONTEXT, VOCAB, PlayingEngine


class Talk(Env):
    """Two turns; each is rewarded by the length of its text, modulo 3."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["input"])]

    async def step(self, turn: AssistantTurn) -> Step:
        reward = float(len(turn.text.encode()) % 3)
        return Step(messages=[Message.user("on")], reward=reward, terminated=turn.index == 1)


class Site:
    """What stands around the learner, in the loop of a side thread."""

    def __init__(self, config: RunConfig, engine: PlayingEngine) -> None:
        self._config, self._engine = config, engine
        self._model_dir = Path(str(config.hf_checkpoint))
        self.run = Path(config.run_dir) / str(config.run_id)
        self.address = f"ipc://{self.run}/b.sock"
        self._state = RunState()

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        config = self._config
        of_parts = {part.name: training_turns(part.config) for part in parts_of(config)}
        turns = training_turns(config)
        settings = BufferSettings.from_config(config, self.address, turns, of_parts)
        async with anyio.create_task_group() as group:
            await group.start(partial(run_buffer, settings, self.run))
            for index in range(config.num_agent_workers):
                group.start_soon(self._work, f"worker-{index}")
            async with BufferPeer(self.address, role="driver", name="driver") as self._driver:
                source = open_source(config, load_env(str(config.env)))
                feeder = Feeder(source, self._driver)
                group.start_soon(self._receive, feeder)
                group.start_soon(feeder.run)
                task_status.started()
                await self._state.wait(lambda state: state.version is not None)
                feeder.open()
                await anyio.sleep_forever()

    async def drain(self, reason: str, resumable: bool) -> None:
        """As the driver does it."""
        await self._driver.deliver(Drain(reason, resumable))
        with anyio.fail_after(300):
            await self._state.wait(lambda state: state.drained)

    async def _receive(self, feeder: Feeder) -> None:
        while True:
            message, _ = await self._driver.receive()
            match message:
                case TaskCredit():
                    await feeder.credit(message)
                case Event():
                    self._state.apply(message)
                case Refused(reason):
                    raise AssertionError(reason)

    async def _work(self, name: str) -> None:
        config, url = self._config, self._engine.url
        worker = Worker(WorkerSettings.from_config(config, self._model_dir, CONTEXT, {}))
        client = EngineClient(
            url,
            [EngineAddress("engine-0", url)],
            vocab_size=VOCAB,
            max_context=CONTEXT,
            num_permits=config.sglang_server_concurrency,
            turn_timeout_s=config.turn_timeout_s,
        )
        peer = BufferPeer(self.address, role="worker", name=name, running=worker.running)
        async with client, peer:
            await worker.run(peer, client)


class WatchedPeer:
    """The learner's connection: remembers leases, and breaks before iteration `dies_at` is told."""

    def __init__(self, peer: BlockingPeer, dies_at: int | None) -> None:
        self._peer = peer
        self._dies_at = dies_at
        self.leases: list[LeaseHeader] = []
        self.stepped = 0

    @property
    def welcome(self) -> Welcome:
        return self._peer.welcome

    def send(self, message: messages.Message, /) -> None:
        self._peer.send(message)

    def deliver(self, message: messages.Message, /) -> None:
        if isinstance(message, Stepped):
            if message.number == self._dies_at:
                raise PeerLostError("killed")
            self.stepped = message.number
        self._peer.deliver(message)

    def receive(self, timeout_s: float, /) -> tuple[messages.Message, Sequence[Any]]:
        message, columns = self._peer.receive(timeout_s)
        if isinstance(message, Lease):
            self.leases.append(message.header)
        return message, columns

    def flush(self, timeout_s: float, /) -> None:
        self._peer.flush(timeout_s)


@contextmanager
def standing(config: RunConfig, engine: PlayingEngine, portal: BlockingPortal) -> Iterator[Site]:
    """A site, its engine included; all of it ends at once."""
    site = Site(config, engine)
    site.run.mkdir(parents=True, exist_ok=True)
    tasks = [portal.start_task(engine.serve)[0]]
    try:
        tasks.append(portal.start_task(site.serve)[0])
        yield site
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        wait(tasks)


def learn(
    config: RunConfig,
    site: Site,
    engine: PlayingEngine,
    *,
    dies_at: int | None = None,
    should_stop: Callable[[int], bool] = lambda stepped: False,
) -> tuple[LearnerOutcome, list[LeaseHeader]]:
    """Be the learner until its end; the leases that it was given. `should_stop` is told the last
    iteration that was made."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engines = [EngineAddress("engine-0", engine.url)]
    backend = MegatronBackend(
        config,
        Path(str(config.hf_checkpoint)),
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        num_training_steps=None,
    )
    sink = RoutedWeightSink(
        engine.url,
        engines,
        lambda on_lost: FleetWeightSink(
            engines,
            bucket_bytes=config.update_weight_buffer_size,
            timeout_s=300.0,
            fleet_size=1,
            on_lost=on_lost,
        ),
    )
    try:
        with BlockingPeer(site.address, role="learner", name="learner-0") as peer:
            watched = WatchedPeer(peer, dies_at)
            outcome = run_learner(
                load_algorithm(config),
                backend,
                watched,
                sink,
                clock=MonotonicClock(),
                should_stop=lambda: should_stop(watched.stepped),
            )
            return outcome, watched.leases
    finally:
        sink.close()
        backend.close()
