"""The episode's boundary: whatever user code raises or answers, a report comes of it."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import agentrl.envs.search_r1
from agentrl.actors import boundary
from agentrl.actors.boundary import MAX_ERROR_CHARS
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode, require_sendable
from agentrl.bounds import MAX_REWARD
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import EngineError
from agentrl.tokens.formats.load import load_format
from agentrl.tools.tool import tool
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    Outcome,
    SamplingParams,
    Task,
    TurnClient,
)

pytestmark = pytest.mark.anyio

CHAT = load_format("qwen", Path(agentrl.envs.search_r1.__file__).parent / "model")
CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call><|im_end|>'
LIMITS = Limits(
    max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=300.0
)


class Client(TurnClient):
    """A TurnClient that samples the given texts, and `42` after them."""

    def __init__(self, *turns: str) -> None:
        self.turns = list(turns)
        self.prompts: list[str] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        self.prompts.append(CHAT.vocab.decode(input_ids))
        ids = CHAT.vocab.encode_trusted(self.turns.pop(0) if self.turns else "42<|im_end|>")
        return Generation(ids, [-0.5] * len(ids), [1] * len(ids), "stop")


class CollectiveRequest(Env):
    """Every answer is worth 1."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    async def score(self, text: str) -> float:
        return 1.0


async def play(
    env: type[Env],
    client: Client | None = None,
    question: str = "?",
    close_timeout_s: float = 10.0,
    context: EnvContext = EnvContext(),  # noqa: B008 - frozen
) -> PlayedEpisode:
    assignment = EpisodeAssignment(
        id=EpisodeId("00000001", 0),
        mint=1,
        seed=7,
        task=Task("t", {"question": question}),
        sampling=SamplingParams(max_new_tokens=64),
    )
    player = Player(EnvEpisodes(env, CHAT, LIMITS, context), close_timeout_s=close_timeout_s)
    return await player.play(assignment, client or Client())


async def test_numpy_rewards_and_metrics_of_any_name_reach_the_report() -> None:
    class Numeric(CollectiveRequest):
        async def step(self, turn: AssistantTurn) -> Step:
            metrics: dict[Any, Any] = {"hits": np.int64(3), 7: np.float32(0.5)}
            step = Step(reward=np.float32(0.25), metrics=metrics, terminated=True)  # type: ignore[arg-type]
            step.reward = np.float32(0.5)  # type: ignore[assignment]
            return step

    report = (await play(Numeric)).report
    assert (report.outcome, report.reward) == (Outcome.DONE, 0.5)
    assert type(report.reward) is float
    assert (report.metrics["hits"], report.metrics["7"]) == (3.0, 0.5)


@pytest.mark.parametrize(
    "step",
    [
        Step(metrics={"\udcff": 1.0}, terminated=True),
        Step(reward=MAX_REWARD, messages=[Message.user("on")]),
    ],
)
async def test_a_report_that_the_buffer_could_not_take_is_an_env_error(step: Step) -> None:
    class Odd(CollectiveRequest):
        async def step(self, turn: AssistantTurn) -> Step:
            return step

    played = await play(Odd)
    assert played.report.outcome is Outcome.ENV_ERROR
    require_sendable(played)


@pytest.mark.parametrize("error", [ValueError("\udcff" * 9000), EngineError("\udcff" * 9000)])
async def test_any_error_text_can_be_sent_and_is_short(error: Exception) -> None:
    class Broken(CollectiveRequest):
        async def score(self, text: str) -> float:
            raise error

    played = await play(Broken)
    require_sendable(played)
    assert len(str(played.report.error)) == MAX_ERROR_CHARS
    assert played.report.outcome is not Outcome.DONE


async def test_an_error_whose_message_cannot_be_read_is_an_env_error() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise KeyError("detail")

    class Broken(CollectiveRequest):
        async def score(self, text: str) -> float:
            raise UnreadableError

    played = await play(Broken)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "UnreadableError" in str(str(played.report.error))


async def test_lone_surrogates_in_messages_are_read_as_question_marks() -> None:
    class Odd(CollectiveRequest):
        async def step(self, turn: AssistantTurn) -> Step:
            done = turn.index == 1
            return Step(messages=[Message.user("a\udcffb")], terminated=done)

    client = Client()
    played = await play(Odd, client, question="c\udcffd")
    assert played.report.outcome is Outcome.DONE
    assert "c?d" in client.prompts[0]
    assert "a?b" in client.prompts[1]


@pytest.mark.parametrize("error", [ValueError("leak"), asyncio.CancelledError(), SystemExit(1)])
async def test_what_close_raises_is_logged_and_the_result_kept(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Leaky(CollectiveRequest):
        async def close(self) -> None:
            raise error

    played = await play(Leaky)
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 1.0)
    assert f"episode 00000001/0#0: its Env's close raised {type(error).__name__}" in caplog.text


async def test_a_close_that_hangs_is_logged_and_the_result_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hung(CollectiveRequest):
        async def close(self) -> None:
            await anyio.sleep_forever()

    played = await play(Hung, close_timeout_s=0.05)
    assert played.report.outcome is Outcome.DONE
    assert "episode 00000001/0#0: its Env's close was cut after 0.05 s" in caplog.text


class Cancelled(CollectiveRequest):
    """Awaits a task that it has cancelled."""

    async def step(self, turn: AssistantTurn) -> Step:
        task = asyncio.ensure_future(anyio.sleep_forever())
        task.cancel()
        await task
        return Step()


class Waiting(CollectiveRequest):
    """Never answers; `stepping` says that it is asked to."""

    stepping: anyio.Event

    async def step(self, turn: AssistantTurn) -> Step:
        self.stepping.set()
        await anyio.sleep_forever()
        return Step()


async def test_a_cancellation_from_inside_the_env_is_an_env_error() -> None:
    played = await play(Cancelled)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "cancelled from inside" in str(played.report.error)


async def test_an_env_that_cancels_the_task_that_it_runs_in_is_an_env_error() -> None:
    class Cancelling(CollectiveRequest):
        async def step(self, turn: AssistantTurn) -> Step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await anyio.sleep_forever()
            return Step()

    played = await play(Cancelling)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "the Env cancelled the task that it runs in" in str(played.report.error)


async def test_a_scope_that_an_env_leaves_open_and_cancels_ends_nobody_else() -> None:
    class Leaving(CollectiveRequest):
        async def step(self, turn: AssistantTurn) -> Step:
            scope = anyio.CancelScope().__enter__()
            scope.cancel()
            return await super().step(turn)

    played = await play(Leaving)
    assert played.report.outcome is Outcome.ENV_ERROR
    await anyio.lowlevel.checkpoint()  # nothing of it reaches the task that asked


async def test_a_cancellation_from_inside_after_a_tool_timed_out_is_an_env_error() -> None:
    class Late(Cancelled):
        @tool
        async def wait(self) -> None:
            """Never answers."""
            await anyio.sleep_forever()

        async def step(self, turn: AssistantTurn) -> Step:
            return await (self.run_tools(turn) if turn.tool_calls else super().step(turn))

    played = await play(Late, Client(CALL), context=EnvContext(tool_timeout_s=0.05))
    assert played.report.outcome is Outcome.ENV_ERROR


def test_an_error_s_place_makes_it_neither_longer_nor_unsendable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boundary, "place_of", lambda error: "a\ud800.py:3")
    said = boundary.describe(ValueError("x" * 5000))
    assert len(said.encode()) == boundary.MAX_ERROR_CHARS
    assert said.endswith("... (a?.py:3)")


async def test_sys_exit_in_an_env_is_an_env_error() -> None:
    class Leaving(CollectiveRequest):
        async def score(self, text: str) -> float:
            raise SystemExit(3)

    played = await play(Leaving)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert re.fullmatch(r"SystemExit: 3 \(.*_boundary.py:\d+\)", str(played.report.error))


@pytest.mark.parametrize("turned_into", [None, ValueError("cleanup"), asyncio.CancelledError()])
async def test_a_cancelled_scope_leaves_the_player_at_once(
    turned_into: BaseException | None,
) -> None:
    class Converting(Waiting):
        stepping = anyio.Event()
        closed = False

        async def step(self, turn: AssistantTurn) -> Step:
            try:
                return await super().step(turn)
            except asyncio.CancelledError:
                if turned_into is not None:
                    raise turned_into from None
                raise

        async def close(self) -> None:
            Converting.closed = True

    played: list[PlayedEpisode] = []

    async def run() -> None:
        with scope:
            played.append(await play(Converting))

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await Converting.stepping.wait()
        scope.cancel()
    assert scope.cancelled_caught
    assert played == []
    assert Converting.closed


async def test_cancelling_the_task_that_plays_cancels_it() -> None:
    Waiting.stepping = anyio.Event()
    task = asyncio.ensure_future(play(Waiting))
    await Waiting.stepping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
