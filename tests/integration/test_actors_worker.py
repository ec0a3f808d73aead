"""A worker and a scripted buffer over a real socket: no episode and no filter ends the worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import agentrl.envs.search_r1
from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import InfrastructureError
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeSummary,
    Generation,
    Outcome,
    SamplingParams,
    StopReason,
    Task,
    TurnClient,
)
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import (
    Ack,
    Assign,
    Cancel,
    Envelope,
    Finished,
    GroupScore,
    Heartbeat,
    Hello,
    ScoreGroup,
    Welcome,
)
from agentrl.wire.messages import Message as WireMessage
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import RouterSocket

pytestmark = pytest.mark.anyio

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
ANSWER = load_format("qwen", MODEL).vocab.encode_trusted("42<|im_end|>")


class Client(TurnClient):
    """A TurnClient that always samples `42`."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        return Generation(ANSWER, [-0.5] * len(ANSWER), [1] * len(ANSWER), "stop")


class Unruly(Env):
    """Does at its first turn what the task says."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.act = task["act"]
        return [Message.user("?")]

    async def step(self, turn: AssistantTurn) -> Step:
        match self.act:
            case "await a cancelled task":
                other = asyncio.ensure_future(anyio.sleep_forever())
                other.cancel()
                await other
            case "cancel its own task":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await anyio.sleep_forever()
            case "leave a scope open":
                anyio.CancelScope().__enter__()
            case "exit":
                raise SystemExit(1)
            case "name a metric oddly":
                return Step(metrics={"\udcff": 1.0}, terminated=True)
            case "wait":
                await anyio.sleep_forever()
        return Step(reward=1.0, terminated=True)


_end_of_test = threading.Event()


class Compared(Unruly):
    """Doubles the rewards of a group, but for a task that it knows not how to compare."""

    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> list[float]:
        if task:
            raise InfrastructureError("the judge is away")
        return [2 * each.reward for each in episodes]


class Told(Env):
    """Rewards with what the framework has told it."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("?")]

    async def score(self, text: str) -> float:
        return self.tool_timeout_s + self.allow_unsafe_sandbox


def slow_filter(rewards: Sequence[float], task: Task) -> bool:
    """Answers when the test ends; the answer to other tasks is quick."""
    return _end_of_test.wait(300) if task.id == "slow" else True


def assignment(index: int, act: str) -> EpisodeAssignment:
    task = Task("t", {"act": act})
    return EpisodeAssignment(EpisodeId("00000001", index), 1, 7, task, SamplingParams())


def judge(group: str, task: str) -> ScoreGroup:
    summary = EpisodeSummary(0, Outcome.DONE, StopReason.TERMINATED, 1.0, {})
    return ScoreGroup(group, Task(task, {}), [summary])


class ScriptedBuffer:
    """Welcomes one worker, acknowledges all it says, and remembers it."""

    def __init__(self, router: RouterSocket) -> None:
        self._router = router
        self._identity = b""
        self.finished: dict[int, Finished] = {}
        self.scores: dict[str, GroupScore] = {}
        self._heard = anyio.Event()

    async def serve(self) -> None:
        while True:
            self._identity, frames = await self._router.recv()
            envelope, _ = decode(frames)
            match envelope.body:
                case Hello():
                    self.say(Welcome(1, 1.0))
                case Heartbeat():
                    self.say(Heartbeat())
                case Finished() as finished:
                    self.finished[finished.report.id.index] = finished
                case GroupScore() as score:
                    self.scores[score.group] = score
            if envelope.seq:
                self.say(Ack([envelope.seq]))
            self._heard.set()
            self._heard = anyio.Event()

    def say(self, message: WireMessage) -> None:
        assert self._router.send(self._identity, encode(Envelope(1, 0, message)))

    async def until(self, ready: Callable[[], bool], limit_s: float = 30) -> None:
        with anyio.fail_after(limit_s):
            while not ready():
                await self._heard.wait()


@asynccontextmanager
async def at_work(
    tmp_path: Path, filter_path: str | None = None, env: str = "Unruly"
) -> AsyncIterator[tuple[ScriptedBuffer, Worker, Callable[[], None], anyio.Event]]:
    """A buffer, its worker, how to cancel that, and whether it has ended."""
    config = RunConfig(
        env=f"{__file__}:{env}",
        rollout_max_prompt_len=400,
        max_turns=4,
        episode_timeout_s=300,
        tool_timeout_s=60.0,
        allow_unsafe_sandbox=True,
        max_concurrent_episodes=8,
        dynamic_sampling_filter_path=filter_path,
    )
    settings = WorkerSettings.from_config(config, MODEL, 512, {})
    address = f"ipc://{tmp_path}/b.sock"
    worker = Worker(settings)
    scope = anyio.CancelScope()
    ended = anyio.Event()

    async def work() -> None:
        with scope:
            async with BufferPeer(address, role="worker", name="w", running=worker.running) as peer:
                await worker.run(peer, Client())
        ended.set()

    async with RouterSocket(address) as router, anyio.create_task_group() as group:
        buffer = ScriptedBuffer(router)
        group.start_soon(buffer.serve)
        group.start_soon(work)
        await buffer.until(lambda: bool(buffer._identity))
        yield buffer, worker, scope.cancel, ended
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "act",
    [
        "await a cancelled task",
        "cancel its own task",
        "leave a scope open",
        "exit",
        "name a metric oddly",
    ],
)
async def test_a_worker_outlives_its_episodes(tmp_path: Path, act: str) -> None:
    async with at_work(tmp_path) as (buffer, *_):
        buffer.say(Assign([assignment(0, act)]))
        await buffer.until(lambda: 0 in buffer.finished)
        assert buffer.finished[0].report.outcome is Outcome.ENV_ERROR
        buffer.say(Assign([assignment(1, "answer")]))
        await buffer.until(lambda: 1 in buffer.finished)
        assert buffer.finished[1].report.outcome is Outcome.DONE


async def test_an_env_is_told_what_the_flags_say(tmp_path: Path) -> None:
    async with at_work(tmp_path, env="Told") as (buffer, *_):
        buffer.say(Assign([assignment(0, "answer")]))
        await buffer.until(lambda: 0 in buffer.finished)
        (trajectory,) = buffer.finished[0].report.trajectories
        assert trajectory.reward == 61.0


async def test_what_the_buffer_cancels_is_stopped_and_not_reported(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (buffer, worker, *_):
        buffer.say(Assign([assignment(0, "wait"), assignment(1, "answer")]))
        await buffer.until(lambda: 1 in buffer.finished)
        assert worker.running() == [EpisodeId("00000001", 0)]
        buffer.say(Cancel([EpisodeId("00000001", 0)]))
        buffer.say(Assign([assignment(2, "answer")]))
        await buffer.until(lambda: 2 in buffer.finished)
        assert worker.running() == []
        assert sorted(buffer.finished) == [1, 2]


async def test_a_cancelled_worker_ends_with_all_its_episodes(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (buffer, worker, cancel, ended):
        waiting = [assignment(index, "wait") for index in range(3)]
        buffer.say(Assign([*waiting, assignment(3, "answer")]))
        await buffer.until(lambda: 3 in buffer.finished)
        assert len(worker.running()) == 3
        cancel()
        with anyio.fail_after(300):
            await ended.wait()
        assert worker.running() == []
        assert sorted(buffer.finished) == [3]


async def test_episodes_go_on_while_a_filter_thinks(tmp_path: Path) -> None:
    _end_of_test.clear()
    path = f"{__name__}:slow_filter"
    try:
        async with at_work(tmp_path, path) as (buffer, *_):
            buffer.say(judge("00000001", "slow"))
            buffer.say(judge("00000001", "slow"))
            buffer.say(Assign([assignment(0, "answer")]))
            await buffer.until(lambda: 0 in buffer.finished)
            assert buffer.scores == {}
            _end_of_test.set()
            buffer.say(judge("00000002", "quick"))
            await buffer.until(lambda: len(buffer.scores) == 2)
            assert all(score.error is None for score in buffer.scores.values())
    finally:
        _end_of_test.set()


async def test_an_env_that_compares_a_group_gives_its_rewards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(tmp_path, env="Compared") as (buffer, *_):
        first, other = judge("00000001", "t"), judge("00000002", "t")
        buffer.say(first)
        buffer.say(msgspec.structs.replace(other, task=Task("t", {"hard": True})))
        await buffer.until(lambda: len(buffer.scores) == 2)
    assert buffer.scores["00000001"] == GroupScore("00000001", [2.0])
    assert not buffer.scores["00000002"].keep
    assert "the judge is away" in str(buffer.scores["00000002"].error)
    assert "group 00000002: env_error: score_group failed 3 times" in caplog.text
