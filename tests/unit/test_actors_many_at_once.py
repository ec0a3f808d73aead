"""A worker that is given many episodes at once begins them one by one."""

from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.types import EpisodeAssignment, EpisodeId, SamplingParams, Task
from agentrl.wire.messages import Assign
from agentrl.wire.messages import Message as WireMessage
from agentrl.wire.peer import BufferPeer
from tests.unit.played_episodes import MODEL, ScriptedClient


class Noting(Env):
    """Notes in its task when it begins, and waits."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        task["seen"].append("episode")
        await anyio.sleep_forever()
        return []


class Peer:
    """A buffer that assigns these episodes in one message."""

    def __init__(self, episodes: list[EpisodeAssignment]) -> None:
        self._episodes = episodes

    async def send(self, message: WireMessage) -> None: ...

    async def receive(self) -> tuple[WireMessage, list[memoryview]]:
        if not self._episodes:
            await anyio.sleep_forever()
        episodes, self._episodes = self._episodes, []
        return Assign(episodes), []


@pytest.mark.anyio
async def test_episodes_that_are_given_at_once_all_count_and_begin_one_by_one() -> None:
    seen: list[str] = []
    task, sampling = Task("t", {"seen": seen}), SamplingParams()
    ids = [EpisodeId("00000001", index) for index in range(50)]
    given = [EpisodeAssignment(id_, 1, 7, task, sampling) for id_ in [*ids, ids[0]]]
    config = RunConfig(env=f"{__file__}:Noting", max_concurrent_episodes=50)
    worker = Worker(WorkerSettings.from_config(config, MODEL, 512, {}))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run, cast("BufferPeer", Peer(given)), ScriptedClient())
        with anyio.fail_after(300):
            while seen.count("episode") < 50:
                await anyio.lowlevel.checkpoint()
                if worker.running():
                    assert worker.running() == ids
                seen.append("pass")
        group.cancel_scope.cancel()
    assert "episode episode" not in " ".join(seen)
