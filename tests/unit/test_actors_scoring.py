"""Rewards of a group seen together: what the Env is shown, and what a bad answer comes to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.scoring import scored
from agentrl.envs.check.signatures import check_class
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import Message
from agentrl.errors import ConfigError, EnvError, InfrastructureError
from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.wire.messages import ScoreGroup
from tests.unit.played_episodes import ASSIGNMENT, CHAT, LIMITS, ScriptedClient

pytestmark = pytest.mark.anyio


class Longest(Env):
    """The longest answer of a group wins."""

    answer: Any = None
    closed = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> Sequence[float]:
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer == "cancel":
            running = asyncio.current_task()
            assert running is not None
            running.cancel()
            await anyio.sleep(1)
        if self.answer == "hang":
            await anyio.sleep_forever()
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        longest = max(len(each.answer) for each in episodes)
        return [float(len(each.answer) == longest) for each in episodes]

    async def close(self) -> None:
        type(self).closed += 1


SHORT = msgspec.structs.replace(LIMITS, episode_timeout_s=0.05)


def order(*answers: str) -> ScoreGroup:
    summaries = [
        EpisodeSummary(index, Outcome.DONE, StopReason.TERMINATED, 0.0, {}, answer)
        for index, answer in enumerate(answers)
    ]
    return ScoreGroup("00000001", Task("t", {}), summaries)


def answering(answer: Any) -> type[Longest]:
    return type("Longest", (Longest,), {"answer": answer})


async def test_the_rewards_of_a_group_take_the_place_of_each_episodes_own() -> None:
    before = Longest.closed
    judged = await scored(order("a", "abc", "ab"), Longest, LIMITS)
    assert [each.reward for each in judged.episodes] == [0.0, 1.0, 0.0]
    assert [each.answer for each in judged.episodes] == ["a", "abc", "ab"]
    assert Longest.closed == before + 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1.0], "returned [1.0]; return 2 finite numbers"),
        ([1.0, float("nan")], "return 2 finite numbers"),
        (7, "returned 7; return 2 finite numbers"),
        (["x", 1], "return 2 finite numbers"),
        (ValueError("no judge"), "score_group failed: ValueError: no judge"),
        (SystemExit(3), "score_group failed: SystemExit"),
        (InfrastructureError("the judge is away"), "score_group failed 3 times"),
        ("cancel", "score_group cancelled the task"),
        ("hang", "score_group gave no reward within 0.05 s (--episode-timeout-s)"),
    ],
)
async def test_a_bad_answer_is_the_envs_error(answer: Any, said: str) -> None:
    cls = answering(answer)
    with pytest.raises(EnvError) as raised:
        await scored(order("a", "b"), cls, SHORT, pause_s=0)
    assert said in str(raised.value)
    assert cls.closed > 0


async def test_a_group_has_the_time_of_a_reward() -> None:
    def made() -> Env:
        env = answering("hang")()
        Env.bind(env, EnvContext(reward_timeout_s=0.05))
        return env

    with pytest.raises(EnvError, match=r"no reward within 0\.05 s \(--reward-timeout-s\)"):
        await scored(order("a", "b"), made, LIMITS, pause_s=0)


async def test_a_judge_that_comes_back_and_a_close_that_fails_cost_nothing() -> None:
    class Away(Longest):
        tries = 0

        async def score_group(
            self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
        ) -> Sequence[float]:
            type(self).tries += 1
            if type(self).tries < 3:
                raise InfrastructureError("the judge is away")
            return await super().score_group(task, episodes)

        async def close(self) -> None:
            raise ValueError("torn")

    judged = await scored(order("a", "b"), Away, LIMITS, pause_s=0)
    assert [each.reward for each in judged.episodes] == [1.0, 1.0]


async def test_a_cancellation_of_the_worker_is_none_of_the_envs() -> None:
    with anyio.move_on_after(0.05) as scope:
        await scored(order("a"), answering("hang"), LIMITS)
    assert scope.cancelled_caught


async def test_an_episode_of_such_an_env_tells_its_last_words() -> None:
    client = ScriptedClient("Rome<|im_end|>")
    played = await Player(EnvEpisodes(Longest, CHAT, LIMITS)).play(ASSIGNMENT, client)
    assert (played.report.answer, played.report.reward) == ("Rome", 0.0)

    class Alone(Longest):
        score_group = Env.score_group

        async def score(self, text: str) -> float:
            return 1.0

    client = ScriptedClient("Rome<|im_end|>")
    played = await Player(EnvEpisodes(Alone, CHAT, LIMITS)).play(ASSIGNMENT, client)
    assert (played.report.answer, played.report.reward) == ("", 1.0)


def test_such_an_env_needs_no_score_but_an_async_method() -> None:
    check_class(Longest)

    class Plain(Longest):
        def score_group(self, task: Any, episodes: Any) -> Any:
            return [1.0]

    with pytest.raises(ConfigError, match=r"score_group .* is a plain def"):
        check_class(Plain)
