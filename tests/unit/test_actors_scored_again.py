"""Episodes whose Env says that its reward reads the text alone: a fresh Env scores the final text
again, and its reward has to be the same."""

from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.tools.tool import tool
from agentrl.types import Generation, Outcome, StopReason
from tests.unit.played_episodes import ASSIGNMENT, CALL, CHAT, LIMITS, Doubler, ScriptedClient, play

pytestmark = pytest.mark.anyio


class Honest(Doubler):
    """Its reward reads nothing but the text."""

    reward_reads_text_only = True

    async def score(self, text: str) -> float:
        return float(text.strip() == "42")


class Cheat(Honest):
    """Whoever has used the tool is right."""

    reward_reads_text_only = True
    has_called = False

    @tool
    async def double(self, number: int) -> int:
        """Double a number."""
        self.has_called = True
        return 2 * number

    async def score(self, text: str) -> float:
        return float(self.has_called)


async def test_a_reward_that_the_final_text_alone_earns_stands() -> None:
    before = Honest.closed
    played = await play(Honest, ScriptedClient(CALL, "42<|im_end|>"))
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 1.0)
    assert "reward_mismatch" not in played.report.metrics
    assert Honest.closed == before + 2  # its own and the fresh one


async def test_a_reward_from_outside_the_text_fails_its_episode_and_marks_the_later_ones() -> None:
    player = Player(EnvEpisodes(Cheat, CHAT, LIMITS))
    played = await player.play(ASSIGNMENT, ScriptedClient(CALL, "I win<|im_end|>"))
    assert (played.report.outcome, played.report.trajectories) == (Outcome.ENV_ERROR, [])
    assert "fresh Cheat that ran no tool gives the same final text 0" in str(played.report.error)
    later = await player.play(ASSIGNMENT, ScriptedClient("I lose<|im_end|>"))
    assert later.report.outcome is Outcome.DONE
    assert later.report.metrics["reward_mismatch"] == 1.0


async def test_an_env_that_declares_nothing_may_reward_what_it_likes() -> None:
    class Free(Cheat):
        reward_reads_text_only = False

    played = await play(Free, ScriptedClient(CALL, "I win<|im_end|>"))
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 1.0)


async def test_an_episode_that_was_cut_is_not_scored_again() -> None:
    client = ScriptedClient(CALL, "I win")
    before = Cheat.closed
    player = Player(EnvEpisodes(Cheat, CHAT, LIMITS))

    async def generate(*args: Any, **kwargs: Any) -> Generation:
        generation = await ScriptedClient.generate(client, *args, **kwargs)
        reason = "stop" if client.turns else "length"
        return msgspec.structs.replace(generation, finish_reason=reason)

    client.generate = generate  # type: ignore[method-assign]
    played = await player.play(ASSIGNMENT, client)
    assert played.report.stop_reason is StopReason.RESPONSE_LIMIT
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 1.0)
    assert Cheat.closed == before + 1


async def test_a_cancellation_reaches_an_episode_that_is_scored_again() -> None:
    class Waiting(Honest):
        reward_reads_text_only = True
        num_scored = 0

        async def score(self, text: str) -> float:
            type(self).num_scored += 1
            if self.num_scored == 2:
                scope.cancel()
                await anyio.sleep_forever()
            return 1.0

    with anyio.CancelScope() as scope:
        await play(Waiting, ScriptedClient("42<|im_end|>"))
    assert scope.cancelled_caught
