"""A driver between a scripted buffer and processes that exist on paper: they end when the test says
so."""

import queue
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from agentrl.clock import MonotonicClock
from agentrl.cluster.driver import Driver
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.layout import INCARNATION, RunDir
from agentrl.cluster.placement import Cluster
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.cluster.standstill import STACKS
from agentrl.config.run import RunConfig
from agentrl.envs.tasks import RunTasks
from agentrl.telemetry.recorder import Recorder
from agentrl.telemetry.summary import RunSummary, read_summary
from agentrl.types import EngineAddress, Task
from agentrl.wire.messages import Barrier, Drain, Envelope, Evaluate, Event, Hello, Welcome
from tests.integration.scripted_buffer import ScriptedBuffer


class PaperCluster:
    """Processes end when the test says so, all of them in the first of the slots. In the others
    nothing happens, and whoever waits for that waits. On the node of `hung` nothing starts."""

    def __init__(self, num_slots: int = 1) -> None:
        self._slots = [f"slot-{index}" for index in range(num_slots)]
        self.over = threading.Event()
        self.hung = ""
        self.incarnations: dict[int, str] = {}
        self.pids: dict[str, int] = {}
        self.killed: list[int] = []
        self._starts: queue.Queue[int] = queue.Queue()
        self._exits: queue.Queue[ExitNotice] = queue.Queue()
        self._ended: set[int] = set()

    def slots(self) -> list[str]:
        return self._slots

    def address_of(self, process: str) -> str:
        return f"10.0.0.{['learner-0', 'worker-0', 'engine-0'].index(process)}"

    def start(self, order: ProcessOrder) -> int:
        if order.name == self.hung:
            self.over.wait()
        pid = 100 + len(self.incarnations)
        self.incarnations[pid] = order.env[INCARNATION]
        self.pids[order.name] = pid
        self._starts.put(pid)
        return pid

    async def next_start(self) -> int:
        """The pid of the next process that is started."""
        return await anyio.to_thread.run_sync(partial(self._starts.get, timeout=500))

    def signal(self, name: str, number: int, pid: int | None = None) -> bool:
        if self.pids[name] != pid or pid in self._ended:
            return False
        if number == STACKS:  # it writes no log
            return True
        assert number == signal.SIGKILL
        self.killed.append(pid)
        self.end(name, -number)
        return True

    def stop(self, names: list[str], grace_s: float) -> None:
        self._ended |= {self.pids[name] for name in names}

    def next_exits(self, slot: str, timeout_s: float) -> list[ExitNotice]:
        if slot != self._slots[0]:
            self.over.wait()
        try:
            return [self._exits.get(timeout=0.02)]
        except queue.Empty:
            return []

    def end(self, name: str, code: int, *, out_of_memory: bool = False) -> None:
        self._ended.add(self.pids[name])
        pid, kind = self.pids[name], kind_of(name)
        self._exits.put(ExitNotice(name, pid, code, False, kind, out_of_memory))


def kind_of(name: str) -> ProcessKind:
    return cast(ProcessKind, name.partition("-")[0])


class GreetedBuffer(ScriptedBuffer):
    """Says when the driver has said Hello, and tells each Barrier back."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.greeted = anyio.Event()
        self.evaluated: list[str] = []

    async def _answer(self, identity: bytes, envelope: Envelope, columns: list[memoryview]) -> None:
        if isinstance(envelope.body, Evaluate):
            self.evaluated.append(envelope.body.id)
        if isinstance(envelope.body, Barrier):
            self.answers[Barrier] = Event("echo", {"id": envelope.body.id})
        await super()._answer(identity, envelope, columns)
        if isinstance(envelope.body, Hello):
            self.greeted.set()


class Play:
    """A driver in the making, and what the test says to it."""

    def __init__(self, folder: Path, buffer: GreetedBuffer, cluster: PaperCluster) -> None:
        self.buffer, self.cluster = buffer, cluster
        self.engine_url: str | None = None
        self.path = folder / "r"
        self.summary: RunSummary | None = None
        self.failure: BaseException | None = None
        self.ended = anyio.Event()

    @property
    def names(self) -> list[str]:
        return ["learner-0", "worker-0", *(["engine-0"] if self.engine_url else [])]

    def order(self, name: str) -> ProcessOrder:
        url = f"{self.engine_url}/health" if name == "engine-0" else ""
        return ProcessOrder(name, ("x",), kind_of(name), ready_url=url)

    def welcome(self, **facts: Any) -> None:
        """What the buffer says to a Hello from now on."""
        self.buffer.answers[Hello] = Welcome(1, 5.0, **facts)

    async def tell(self, kind: str, **data: Any) -> None:
        await self.buffer.say(Event(kind, data))

    async def published(self, version: int, iteration: int) -> None:
        about: dict[str, Any] = {
            "parent": None,
            "iteration": iteration,
            "through": iteration,
            "metrics": {},
        }
        await self.tell("published", version=version, **about)

    async def learner_ends(self) -> None:
        self.cluster.end("learner-0", 0)
        await self.ended.wait()

    async def conduct(self, config: RunConfig, eval_sets: dict[str, list[Task]]) -> None:
        clock = MonotonicClock()
        spec = RunSpec(
            config=config,
            run_dir=str(self.path),
            model_dir="m",
            model=ModelFacts(9, 9),
            buffer_address=self.buffer.address,
            router_url=self.engine_url,
            engines=[EngineAddress("engine-0", self.engine_url)] if self.engine_url else [],
            services={},
            master_address="",
            master_port=0,
            collective_address="",
        )
        with RunDir(config) as run, Recorder(run.path, config, clock) as recorder:
            driver = Driver(
                run=run,
                spec=spec,
                cluster=cast(Cluster, self.cluster),
                orders=[self.order(name) for name in self.names],
                tasks=RunTasks(cast(Any, None), eval_sets),
                recorder=recorder,
                clock=clock,
            )
            try:
                await driver.run()
            except BaseExceptionGroup as group:
                self.failure = _leaf(group)
            recorder.finish("complete")
        self.summary = read_summary(self.path / "summary.json")
        self.ended.set()


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def playing(
    folder: Path,
    *,
    continued: bool = False,
    eval_sets: dict[str, list[Task]] | None = None,
    num_slots: int = 1,
    **flags: Any,
) -> AsyncIterator[tuple[Play, Callable[[], Awaitable[None]]]]:
    """A scripted buffer, and what starts the driver once its Welcome is chosen."""
    resume = "never"
    if continued:
        (folder / "r").mkdir()
        resume = str(folder / "r")
    usual: dict[str, Any] = {"skip_eval_before_train": True, "loss_type": "sft_loss"}
    config = RunConfig(
        run_dir=str(folder), run_id="r", resume=resume, rollout_batch_size=16,
        actor_num_gpus_per_node=1, **(usual | flags),
    )  # fmt: skip
    async with GreetedBuffer(f"ipc://{folder}/b.sock") as buffer:
        buffer.answers = {Drain: Event("drained", {"counts": {}, "open": 0})}
        play = Play(folder, buffer, PaperCluster(num_slots))
        play.welcome()
        with anyio.fail_after(500):
            async with anyio.create_task_group() as group:

                async def start() -> None:
                    group.start_soon(play.conduct, config, eval_sets or {})
                    if play.cluster.hung:
                        return
                    for _ in play.names:
                        await play.cluster.next_start()
                    await buffer.greeted.wait()

                try:
                    yield play, start
                finally:
                    play.cluster.over.set()
