"""The benchmark of idle episodes: its numbers, its script, and how a worker begins many of them."""

from collections.abc import Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
import pytest

from agentrl.actors.worker import Worker
from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    SamplingParams,
    Task,
    TurnClient,
)
from agentrl.wire.messages import Assign
from agentrl.wire.messages import Message as WireMessage
from agentrl.wire.peer import BufferPeer
from benchmarks import idle_episodes, waiting
from benchmarks.waiting import MODEL, Watched

# ---- numbers -------------------------------------------------------------------------------------


def test_a_beat_is_missed_for_each_silent_one_beyond_the_first() -> None:
    missed = idle_episodes.missed_beats
    assert missed([1.0, 1.9, 2.8], 0.0, 3.5) == 0
    assert missed([1.9], 0.0, 3.0) == 0
    assert missed([2.0], 0.0, 3.0) == 1
    assert missed([3.5], 0.0, 6.0) == 2 + 1
    assert missed([], 0.0, 4.0) == 3
    assert missed([-1.0, 5.0], 0.0, 1.0) == 0


def held(done: int) -> idle_episodes.Held:
    watched = Watched([0.5], [0.001] * 999 + [0.04], 1_000_000, 1_300_000, 10.0, 12.0)
    return idle_episodes.Held(done, [10.5, 11.5], [9.0, 11.0], watched)


def test_idle_episodes_cost_what_memory_grew_by() -> None:
    rows = {row.metric: row.value for row in idle_episodes.rows_of(10, held(10))}
    assert rows == {
        "episodes": 10, "bytes_per_episode": 30_000, "loop_lag_ms": 1.0, "missed_heartbeats": 0,
        "rejoins": 1, "loop_lag_max_ms": 40.0, "starting_lag_ms": 500.0,
    }  # fmt: skip


def test_a_lost_episode_spoils_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="9 of 10 episodes"):
        idle_episodes.rows_of(10, held(9))


def test_the_scripted_engine_calls_the_tool_and_then_answers() -> None:
    chat = load_format("qwen", MODEL)
    call = chat.parse(chat.vocab.encode_trusted(idle_episodes.CALL))
    assert [(tool.name, tool.arguments) for tool in call.tool_calls] == [("wait", b"{}")]
    answer = chat.parse(chat.vocab.encode_trusted(idle_episodes.ANSWER))
    assert (answer.text, answer.tool_calls) == ("42", [])


# ---- a worker that is given many episodes at once ------------------------------------------------


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


class Client(TurnClient):
    """Engines that nobody asks."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        raise NotImplementedError


@pytest.mark.anyio
async def test_episodes_that_are_given_at_once_all_count_and_begin_one_by_one() -> None:
    seen: list[str] = []
    task, sampling = Task("t", {"seen": seen}), SamplingParams()
    ids = [EpisodeId("00000001", index) for index in range(50)]
    given = [EpisodeAssignment(id_, 1, 7, task, sampling) for id_ in [*ids, ids[0]]]
    settings = msgspec.structs.replace(waiting.settings_of(50), env=f"{__file__}:Noting")
    worker = Worker(settings)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run, cast("BufferPeer", Peer(given)), Client())
        with anyio.fail_after(300):
            while seen.count("episode") < 50:
                await anyio.lowlevel.checkpoint()
                if worker.running():
                    assert worker.running() == ids
                seen.append("pass")
        group.cancel_scope.cancel()
    assert "episode episode" not in " ".join(seen)
