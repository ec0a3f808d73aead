"""An engine and a buffer that play parts for a worker process: production sockets, scripted words.

ScriptedBuffer --Assign--> worker --/generate--> ScriptedEngine
               <-Finished-

`settings_of` and `client_of` are what the worker is made with.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from aiohttp import web

import agentrl.envs.search_r1
from agentrl.actors.limits import Limits
from agentrl.actors.worker import WorkerSettings
from agentrl.envs.env import EnvContext
from agentrl.serving.client import ROUTING_HEADER, EngineClient
from agentrl.types import (
    EngineAddress,
    EpisodeAssignment,
    EpisodeId,
    Outcome,
    SamplingParams,
    Task,
)
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import (
    Ack,
    Assign,
    Envelope,
    Finished,
    Heartbeat,
    Hello,
    Message,
    Welcome,
)
from agentrl.wire.transport import RouterSocket

__all__ = ["LIMIT_S", "MODEL", "ScriptedBuffer", "ScriptedEngine", "client_of", "reply"]
__all__ += ["VOCAB_SIZE", "settings_of"]

#: Seconds between two heartbeats.
BEAT_S = 1.0
#: Seconds that a measurement may take.
LIMIT_S = 600.0
MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
VOCAB_SIZE, MAX_CONTEXT = 2048, 1024
NUM_PERMITS = 256


class ScriptedEngine:
    """An engine, and the router before it. `turns`: what every episode samples, turn by turn, as
    bodies of answers (`reply`); the last one is said again. `said`: turns by episode."""

    def __init__(self, turns: Sequence[bytes]) -> None:
        self._turns = list(turns)
        self.said = Counter[str]()
        self.url = ""

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        app = web.Application()
        self.add_routes(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/generate", self._generate)

    async def _generate(self, request: web.Request) -> web.Response:
        await request.read()
        episode = request.headers[ROUTING_HEADER]
        body = self.turn(self.said[episode])
        self.said[episode] += 1
        return web.Response(body=body, content_type="application/json")

    def turn(self, number: int) -> bytes:
        """What is said in an episode's turn of that number, from 0."""
        return self._turns[min(number, len(self._turns) - 1)]


def reply(ids: list[int]) -> bytes:
    """An engine's answer of these tokens, sampled by version 1."""
    meta: dict[str, Any] = {
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
    }
    return msgspec.json.encode({"output_ids": ids, "meta_info": meta})


class ScriptedBuffer:
    """Welcomes one worker, and acknowledges all it says."""

    def __init__(self, router: RouterSocket) -> None:
        self._router = router
        self._identity = b""
        #: By episode: a report whose Ack is late comes again.
        self.ended: dict[EpisodeId, Outcome] = {}
        self.is_joined = False
        self._changed = anyio.Event()

    async def serve(self) -> None:
        while True:
            self._identity, frames = await self._router.recv()
            envelope, _ = decode(frames)
            match envelope.body:
                case Hello():
                    self.is_joined = True
                    self.say(Welcome(1, BEAT_S))
                case Heartbeat():
                    self.say(Heartbeat())
                case Finished(report=report):
                    self.ended[report.id] = report.outcome
            if envelope.seq:
                self.say(Ack([envelope.seq]))
            self._changed.set()
            self._changed = anyio.Event()

    def say(self, message: Message) -> None:
        if not self._router.send(self._identity, encode(Envelope(0, 0, message))):
            raise RuntimeError(f"the worker did not take {type(message).__name__}")

    def assign(self, group: str, num: int) -> None:
        """Have `num` episodes of one task played."""
        task, sampling = Task(group, {}), SamplingParams()
        ids = [EpisodeId(group, index) for index in range(num)]
        self.say(Assign([EpisodeAssignment(id_, 1, id_.index, task, sampling) for id_ in ids]))

    async def until(self, ready: Callable[[], bool]) -> None:
        with anyio.fail_after(3 * LIMIT_S):
            while not ready():
                await self._changed.wait()


def settings_of(env: str, num_episodes: int) -> WorkerSettings:
    """Of a worker that plays so many episodes at once."""
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
