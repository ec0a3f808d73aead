"""Errors of user code that end a program elsewhere: here each is the outcome of its episode."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest

from agentrl.actors.boundary import describe
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.failures import Failures
from agentrl.actors.group_scoring import score_group
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.scoring import scored
from agentrl.actors.worker_loop import WorkerLoop
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import EnvError
from agentrl.tools.tool import ToolError, tool
from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.wire.messages import ScoreGroup
from tests.unit.rollout_ground import ASSIGNMENT, Policy
from tests.unit.rollout_ground import play as play_rollout
from tests.unit.test_actors_boundary import CHAT, LIMITS, Client, play

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that a worker runs on."""
    return "asyncio", {"loop_factory": WorkerLoop}


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """SIGINT is heard as a worker hears it: nothing is raised."""
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, handler)


class UnreadableError(Exception):
    """Whoever reads it ends the program."""

    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class UnreadableToolError(ToolError):
    """As above, meant for the model."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class OwnError(BaseException):
    """No Exception."""


class UnreadableEnvError(EnvError):
    """agentrl's own class does not make it readable."""

    __str__ = UnreadableError.__str__


FATAL: list[type[BaseException]] = [
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    OwnError,
    UnreadableError,
    UnreadableEnvError,
    asyncio.CancelledError,
]
PLACES = ["init", "reset", "step", "score", "one call", "two calls", "threads", "own task"]


def calling(name: str, times: int) -> str:
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
    return "\n".join([call] * times) + "<|im_end|>"


class Fatal(Env):
    """Raises `failure` at `place`."""

    failure: type[BaseException]
    place: str

    def __init__(self) -> None:
        self.fail_at("init")

    def fail_at(self, place: str) -> None:
        if self.place == place:
            raise self.failure

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.fail_at("reset")
        return [Message.user("?")]

    async def step(self, turn: AssistantTurn) -> Step:
        self.fail_at("step")
        if self.place == "own task":
            await asyncio.ensure_future(self.fail())
        return await super().step(turn)

    async def score(self, text: str) -> float:
        self.fail_at("score")
        return 1.0

    async def fail(self) -> None:
        raise self.failure

    @tool(parallel=True)
    async def call(self) -> str:
        """Fail."""
        raise self.failure

    @tool(parallel=True, thread=True)
    def work(self) -> str:
        """Fail in a thread."""
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "place"),
    [
        (failure, place)
        for failure in FATAL
        for place in PLACES
        # Python closes every coroutine that waits for a GeneratorExit: see the worker's own test
        if (failure, place) != (GeneratorExit, "own task")
    ],
)
async def test_what_user_code_raises_is_its_episode_s_env_error(
    failure: type[BaseException], place: str
) -> None:
    env = type("Made", (Fatal,), {"failure": failure, "place": place})
    turns = {
        "one call": calling("call", 1),
        "two calls": calling("call", 2),
        "threads": calling("work", 2),
    }
    client = Client(*([turns[place]] if place in turns else []))
    report = (await play(env, client)).report
    assert report.outcome is Outcome.ENV_ERROR
    own_task = failure is asyncio.CancelledError and place == "two calls"
    assert ("cancelled the task" if own_task else failure.__name__) in str(report.error)


async def test_the_episode_beside_a_tool_that_exits_goes_on() -> None:
    class Exits(Fatal):
        failure, place = SystemExit, "none"

    class Waits(Env):
        ended = anyio.Event()

        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            await self.ended.wait()
            return [Message.user("?")]

        async def score(self, text: str) -> float:
            return 1.0

    outcomes: list[Outcome] = []

    async def beside() -> None:
        outcomes.append((await play(Waits)).report.outcome)

    async with anyio.create_task_group() as group:
        group.start_soon(beside)
        for name in ("call", "work"):
            report = (await play(Exits, Client(calling(name, 3)))).report
            assert (report.outcome, "SystemExit" in str(report.error)) == (Outcome.ENV_ERROR, True)
        Waits.ended.set()
    assert outcomes == [Outcome.DONE]


async def test_a_task_nobody_awaits_and_a_callback_end_no_loop() -> None:
    def leave() -> None:
        raise SystemExit(5)

    async def exits() -> None:
        raise KeyboardInterrupt

    loop = asyncio.get_running_loop()
    loop.call_soon(leave)
    forgotten = asyncio.ensure_future(exits())
    called = asyncio.Event()
    loop.call_soon(called.set)
    with anyio.fail_after(300):
        await called.wait()
        await asyncio.wait({forgotten})
    assert isinstance(forgotten.exception(), KeyboardInterrupt)


def test_the_loop_of_a_worker_ends_with_what_ends_its_main_task() -> None:
    async def main() -> None:
        raise SystemExit(6)

    with pytest.raises(SystemExit, match="6"):
        anyio.run(main, backend_options={"loop_factory": WorkerLoop})


async def test_a_tool_s_word_to_the_model_that_cannot_be_read_ends_nothing() -> None:
    class Cryptic(Fatal):
        failure, place = UnreadableToolError, "none"

    client = Client(calling("call", 1))
    report = (await play(Cryptic, client)).report
    assert report.outcome is Outcome.DONE
    assert "error: UnreadableToolError (its message cannot be read)" in client.prompts[-1]


@pytest.mark.parametrize("failure", FATAL)
async def test_what_close_raises_leaves_the_reward(failure: type[BaseException]) -> None:
    class Leaky(Fatal):
        place = "none"

        async def close(self) -> None:
            raise self.failure

    env = type("Made", (Leaky,), {"failure": failure})
    report = (await play(env)).report
    assert (report.outcome, report.reward) == (Outcome.DONE, 1.0)


@pytest.mark.parametrize("failure", FATAL)
@pytest.mark.parametrize("calls", [0, 1])
async def test_what_an_agent_raises_is_its_episode_s_env_error(
    failure: type[BaseException], calls: int
) -> None:
    class Failing(Rollout):
        async def solve(self, task: dict[str, Any], chat: Chat) -> float:
            for _ in range(calls):
                await chat.complete([{"role": "user", "content": "?"}])
            raise failure

    report = (await play_rollout(Failing, Policy(["42"]))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert failure.__name__ in str(report.error)


@pytest.mark.parametrize("method", ["snapshot", "restore"])
@pytest.mark.parametrize("failure", FATAL)
async def test_what_saving_raises_is_its_episode_s_env_error(
    failure: type[BaseException], method: str
) -> None:
    class Saved(Fatal):
        place = "none"

        async def step(self, turn: AssistantTurn) -> Step:
            return Step(messages=[Message.user("on")], terminated=turn.index == 1)

        async def snapshot(self) -> bytes:
            if method == "snapshot":
                raise failure
            return b""

        async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
            raise failure

    async def save(state: bytes) -> None:
        states.append(state)

    states: list[bytes] = []
    player = Player(EnvEpisodes(Saved, CHAT, LIMITS))
    report = (await player.play(ASSIGNMENT, Client(), save=save)).report
    if method == "restore":
        report = (await player.play(ASSIGNMENT, Client(), saved=states[0])).report
    assert report.outcome is Outcome.ENV_ERROR
    assert failure.__name__ in str(report.error)


def order() -> ScoreGroup:
    summary = EpisodeSummary(0, Outcome.DONE, StopReason.TERMINATED, 1.0, {})
    return ScoreGroup("00000001", Task("t", {}), [summary])


@pytest.mark.parametrize("failure", FATAL)
async def test_what_a_judge_raises_is_its_group_s_error(failure: type[BaseException]) -> None:
    class Judged(Fatal):
        place = "none"

        async def score_group(
            self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
        ) -> list[float]:
            raise self.failure

    limits: Limits = LIMITS
    with pytest.raises(EnvError) as raised:
        await scored(order(), type("Made", (Judged,), {"failure": failure}), limits)
    assert failure.__name__ in describe(raised.value)


@pytest.mark.parametrize("failure", FATAL)
async def test_what_a_filter_raises_is_its_group_s_error(failure: type[BaseException]) -> None:
    def unfit(rewards: Sequence[float], task: Task) -> bool:
        raise failure

    score = await score_group(order(), unfit, Failures())
    assert not score.keep
    assert failure.__name__ in str(score.error)
