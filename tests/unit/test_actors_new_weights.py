"""The worker passes on what the buffer says of new weights, and reports what followed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

import agentrl.envs.search_r1
from agentrl.actors.limits import Limits
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.envs.env import EnvContext
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EngineAddress,
    EpisodeAssignment,
    EpisodeId,
    Generation,
    Outcome,
    SamplingParams,
    Task,
    TurnClient,
)
from agentrl.wire.messages import Assign, Engines, Finished, Message, NewWeights
from agentrl.wire.peer import BufferPeer

pytestmark = pytest.mark.anyio

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
ASSIGNMENT = EpisodeAssignment(
    id=EpisodeId("00000001", 0),
    mint=1,
    seed=7,
    task=Task("t", {"input": "Double 21.", "label": "42"}),
    sampling=SamplingParams(max_new_tokens=64),
)


THERE = EngineAddress("engine-0", "http://10.0.0.9:7")


class Buffer:
    """The buffer's end of a connection: what it says, and what was delivered to it."""

    def __init__(self) -> None:
        self.say, self._heard = anyio.create_memory_object_stream[Message](8)
        self.delivered, self.finished = anyio.create_memory_object_stream[Finished](8)

    async def receive(self) -> tuple[Message, list[Any]]:
        return await self._heard.receive(), []

    async def send(self, message: Message) -> None:
        pass

    async def deliver(self, message: Finished, columns: Sequence[Any] = ()) -> None:
        await self.delivered.send(message)


class Engine(TurnClient):
    """Answers its one turn once it has heard of new weights."""

    def __init__(self) -> None:
        self.asked, self.renewed = anyio.Event(), anyio.Event()
        self.engines: list[EngineAddress] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        self.asked.set()
        await self.renewed.wait()
        ids = load_format("qwen", MODEL).vocab.encode_trusted("42<|im_end|>")
        return Generation(ids, [-0.5] * len(ids), [2] * len(ids), "stop", num_resamples=2)

    def new_weights(self, _version: int) -> None:
        self.renewed.set()

    def moved(self, engines: Sequence[EngineAddress]) -> None:
        self.engines = list(engines)


def worker() -> Worker:
    limits = Limits(
        max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=300.0
    )
    settings = WorkerSettings(
        env="single-turn",
        env_args={},
        context=EnvContext(tool_timeout_s=1.0),
        model_dir=str(MODEL),
        chat_format="qwen",
        limits=limits,
        max_concurrent_episodes=4,
    )
    return Worker(settings)


async def test_the_client_hears_of_new_weights_and_the_report_tells_of_turns_sampled_again() -> (
    None
):
    buffer, engine = Buffer(), Engine()
    async with anyio.create_task_group() as group:
        group.start_soon(worker().run, cast(BufferPeer, buffer), engine)
        await buffer.say.send(Assign([ASSIGNMENT]))
        await engine.asked.wait()
        await buffer.say.send(Engines([THERE]))
        await buffer.say.send(NewWeights(2))
        report = (await buffer.finished.receive()).report
        group.cancel_scope.cancel()
    assert (report.outcome, report.reward) == (Outcome.DONE, 1.0)
    assert report.metrics["resampled_turns"] == 2.0
    assert engine.engines == [THERE]
