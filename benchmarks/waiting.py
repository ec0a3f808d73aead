"""A worker process whose episodes all wait in a tool, and what it notices of itself meanwhile.

starting (the first of them begins) -> holding (all wait) -> released
"""

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil

import agentrl.envs.search_r1
from agentrl.actors.limits import Limits
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import Message
from agentrl.serving.client import EngineClient
from agentrl.tools.tool import tool
from agentrl.types import EngineAddress
from agentrl.wire.peer import BufferPeer
from benchmarks.scripted import LIMIT_S

__all__ = ["MODEL", "WaitingEnv", "Watched", "client_of", "settings_of", "work"]

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
VOCAB_SIZE, MAX_CONTEXT = 2048, 1024
NUM_PERMITS = 256
#: Seconds between two looks at the loop.
LOOK_S = 0.01


class Watched(msgspec.Struct, frozen=True):
    """Seconds by which the loop was late at each look, while the episodes began and while all
    waited; bytes of resident memory before and after they began; moments (seconds) at which the
    first began and at which they were released."""

    starting_lag: list[float]
    holding_lag: list[float]
    bytes_before: int
    bytes_after: int
    began: float
    released: float


class Hall:
    """Where the episodes of this process wait until they are released."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.began: float | None = None
        self.bytes_before = 0
        self.released = anyio.Event()

    def enter(self) -> None:
        """An episode that is to wait begins."""
        if self.began is None:
            self.began, self.bytes_before = time.monotonic(), resident_bytes()

    async def wait(self) -> None:
        self.num_waiting += 1
        await self.released.wait()


HALL = Hall()


class WaitingEnv(Env):
    """Its one tool returns when the hall is released, or at once where the task says `pass`."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self._passes = bool(task.get("pass"))
        if not self._passes:
            HALL.enter()
        return [Message.user("Wait, then answer.")]

    @tool
    async def wait(self) -> str:
        """Wait."""
        if not self._passes:
            await HALL.wait()
        return "now"

    async def score(self, text: str) -> float:
        return 1.0


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def settings_of(num_episodes: int, env: str = f"{__name__}:WaitingEnv") -> WorkerSettings:
    limits = Limits(
        max_context=MAX_CONTEXT,
        max_prompt=MAX_CONTEXT // 2,
        max_turns=4,
        max_tool_calls=None,
        episode_timeout_s=2 * LIMIT_S,
    )
    return WorkerSettings(
        env=env,
        env_args={},
        context=EnvContext(tool_timeout_s=2 * LIMIT_S),
        model_dir=str(MODEL),
        chat_format="qwen",
        limits=limits,
        max_concurrent_episodes=num_episodes,
    )


def work(
    connection: Connection, buffer: str, engine: str, num_episodes: int, hold_s: float
) -> None:
    """Main of the worker process; tells what it noticed, and goes on until it is told to end."""
    anyio.run(_work, connection, buffer, engine, num_episodes, hold_s)


def client_of(engine: str) -> EngineClient:
    """A client of the engine at this address."""
    return EngineClient(
        engine,
        [EngineAddress("engine-0", engine)],
        vocab_size=VOCAB_SIZE,
        max_context=MAX_CONTEXT,
        num_permits=NUM_PERMITS,
        turn_timeout_s=LIMIT_S,
    )


async def _work(
    connection: Connection, buffer: str, engine: str, num_episodes: int, hold_s: float
) -> None:
    worker = Worker(settings_of(num_episodes))
    client = client_of(engine)
    peer = BufferPeer(buffer, role="worker", name="worker-0", running=worker.running)
    async with client, peer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run, peer, client)
        watched = await _watch(num_episodes, hold_s)
        HALL.released.set()
        connection.send_bytes(msgspec.json.encode(watched))
        await anyio.to_thread.run_sync(connection.recv_bytes)
        tasks.cancel_scope.cancel()


async def _watch(num_episodes: int, hold_s: float) -> Watched:
    """Look at the loop until all episodes have waited for `hold_s` seconds."""
    starting: list[float] = []
    holding: list[float] = []
    with anyio.fail_after(LIMIT_S):
        while HALL.num_waiting < num_episodes:
            lag = await _lag()
            if HALL.began is not None:
                starting.append(lag)
    bytes_after = resident_bytes()
    assert HALL.began is not None
    release_at = time.monotonic() + hold_s
    while time.monotonic() < release_at:
        holding.append(await _lag())
    return Watched(starting, holding, HALL.bytes_before, bytes_after, HALL.began, release_at)


async def _lag() -> float:
    """Seconds by which a short sleep took longer than it should."""
    began = time.monotonic()
    await anyio.sleep(LOOK_S)
    return max(0.0, time.monotonic() - began - LOOK_S)
