"""The limits of an episode: prompts, turns, tool calls, tokens and time, each of which ends it in
its own way."""

from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.limits import Limits
from agentrl.actors.worker import WorkerSettings
from agentrl.config.resolve import parse
from agentrl.envs.env import EnvContext
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.tools.tool import tool
from agentrl.types import Generation, Outcome, StopReason
from tests.unit.played_episodes import CALL, CHAT, LIMITS, MODEL, Doubler, ScriptedClient, play

pytestmark = pytest.mark.anyio
SHORT = msgspec.structs.replace(LIMITS, episode_timeout_s=1.0)


async def test_a_hung_tool_is_cut_and_the_episode_goes_on() -> None:
    class Hung(Doubler):
        @tool
        async def double(self, number: int) -> int:
            """Never answers."""
            await anyio.sleep_forever()
            return number

    client = ScriptedClient(CALL, "42<|im_end|>")
    played = await play(Hung, client, context=EnvContext(tool_timeout_s=0.05))
    assert played.report.outcome is Outcome.DONE
    assert played.report.metrics["tool_errors"] == 1.0
    assert "timed out" in CHAT.vocab.decode(client.prompts[1])


async def test_an_env_that_hangs_is_truncated_at_the_episodes_deadline() -> None:
    class Hung(Doubler):
        async def step(self, turn: AssistantTurn) -> Step:
            await anyio.sleep_forever()
            return Step()

    limits = Limits(
        max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=1.0
    )
    played = await play(Hung, ScriptedClient("42<|im_end|>"), limits)
    assert (played.report.outcome, played.report.stop_reason) == (
        Outcome.DONE,
        StopReason.TIME_LIMIT,
    )


async def test_a_reward_that_hangs_is_an_error_and_no_reward_of_0() -> None:
    class Undecided(Doubler):
        async def score(self, text: str) -> float:
            await anyio.sleep_forever()
            return 0.0

    limits = Limits(
        max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=1.0
    )
    played = await play(Undecided, ScriptedClient("42<|im_end|>"), limits)
    assert played.report.outcome is Outcome.ENV_ERROR
    said = "Undecided.score gave no reward within 1 s (--episode-timeout-s)"
    assert said in str(played.report.error)


async def test_a_reward_has_a_deadline_of_its_own() -> None:
    class Undecided(Doubler):
        async def score(self, text: str) -> float:
            await anyio.sleep_forever()
            return 0.0

    context = EnvContext(reward_timeout_s=0.05)
    played = await play(Undecided, ScriptedClient("42<|im_end|>"), context=context)
    assert played.report.outcome is Outcome.ENV_ERROR
    said = "Undecided.score gave no reward within 0.05 s (--reward-timeout-s)"
    assert said in str(played.report.error)


async def test_a_prompt_longer_than_allowed_is_filtered_and_says_so() -> None:
    played = await play(Doubler, ScriptedClient(), question="Double 21. " * 400)
    assert played.report.outcome is Outcome.FILTERED
    assert "--rollout-max-prompt-len" in str(played.report.error)


async def test_turns_are_limited() -> None:
    played = await play(Doubler, ScriptedClient(*[CALL] * 4))
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert played.report.trajectories[0].num_turns == 4
    assert played.report.reward == 0.0


async def test_a_run_limits_turns_by_its_flag() -> None:
    flags = "--max-turns 2 --env tools --device cpu --num-rollout 1 --rollout-max-response-len 64"
    config = parse([*flags.split(), "--hf-checkpoint", str(MODEL)], "train_async").config
    limits = WorkerSettings.from_config(config, MODEL, 512, {}).limits
    played = await play(Doubler, ScriptedClient(*[CALL] * 4), limits)
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert played.report.trajectories[0].num_turns == 2


async def test_tool_calls_are_limited() -> None:
    limits = Limits(
        max_context=512, max_prompt=400, max_turns=9, max_tool_calls=1, episode_timeout_s=300.0
    )
    played = await play(Doubler, ScriptedClient(CALL, CALL), limits)
    assert played.report.stop_reason is StopReason.TOOL_CALL_LIMIT


async def test_a_turn_cut_by_its_length_ends_the_episode() -> None:
    played = await play(Doubler, ScriptedClient("4", finish="length"))
    assert played.report.stop_reason is StopReason.RESPONSE_LIMIT


async def test_generation_never_exceeds_the_context() -> None:
    client = ScriptedClient(*[CALL] * 30, finish="stop")
    limits = Limits(
        max_context=160, max_prompt=100, max_turns=30, max_tool_calls=None, episode_timeout_s=300.0
    )
    played = await play(Doubler, client, limits)
    assert played.report.stop_reason is StopReason.CONTEXT_LIMIT
    for prompt, sampling in zip(client.prompts, client.sampling, strict=True):
        assert len(prompt) + sampling.max_new_tokens < 160


async def test_an_answer_that_does_not_fit_the_context_is_in_no_trajectory() -> None:
    """One longer than the context would fit no micro-batch, and end the run."""

    class Talker(Doubler):
        async def step(self, turn: AssistantTurn) -> Step:
            return Step(messages=[Message.user("word " * LIMITS.max_context)], reward=1.0)

    played = await play(Talker, ScriptedClient(CALL))
    assert played.report.stop_reason is StopReason.CONTEXT_LIMIT
    (meta,) = played.report.trajectories
    assert meta.num_tokens <= LIMITS.max_context
    assert (meta.num_turns, meta.reward) == (1, 1.0)


async def test_time_that_runs_out_in_reset_is_an_env_error() -> None:
    class Hung(Doubler):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            await anyio.sleep_forever()
            return []

    played = await play(Hung, ScriptedClient(), SHORT)
    assert played.report.outcome is Outcome.ENV_ERROR
    error = str(played.report.error)
    assert "reset (or restore) did not return within 1 s (--episode-timeout-s)" in error


async def test_time_that_runs_out_before_the_first_token_is_an_engine_error() -> None:
    class Busy(ScriptedClient):
        async def generate(self, *args: Any, **kwargs: Any) -> Generation:
            await anyio.sleep_forever()
            raise AssertionError

    played = await play(Doubler, Busy(), SHORT)
    assert played.report.outcome is Outcome.ENGINE_ERROR
    assert "the first turn was not sampled within 1 s" in str(played.report.error)
