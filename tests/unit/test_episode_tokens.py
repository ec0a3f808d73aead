"""`--max-episode-tokens`: what all turns of an episode may sample together; `--eval-min-p`."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.worker import WorkerSettings
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.sampling import evaluation_turns, training_turns
from agentrl.envs.rollout import Chat
from agentrl.types import StopReason
from tests.unit import rollout_ground
from tests.unit.played_episodes import CALL, LIMITS, Doubler, ScriptedClient
from tests.unit.played_episodes import play as play_env
from tests.unit.rollout_ground import CHAT, Policy

pytestmark = pytest.mark.anyio

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
A_CALL = len(CHAT.vocab.encode_trusted(CALL))


def limited(limits: Any, number: int) -> Any:
    return msgspec.structs.replace(limits, max_episode_tokens=number, max_turns=30)


@pytest.mark.parametrize("more", [0, 1, 5])
async def test_an_episode_samples_no_more_than_its_tokens(more: int) -> None:
    """It ends with the turn that takes the last, cut or not."""
    client = ScriptedClient(*[CALL] * 9)
    played = await play_env(Doubler, client, limited(LIMITS, 2 * A_CALL + more))
    report = played.report
    assert report.stop_reason is StopReason.RESPONSE_LIMIT
    assert report.trajectories[0].num_sampled == 2 * A_CALL + more
    assert len(client.sampling) == (3 if more else 2)
    assert client.sampling[-1].max_new_tokens == (more or A_CALL)


async def test_an_agent_with_its_own_loop_is_told_that_they_are_spent() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        for _ in range(9):
            await chat.complete([{"role": "user", "content": "on"}])
        return 1.0

    policy = Policy(lambda _: "word word word<|im_end|>")
    one = len(CHAT.vocab.encode_trusted("word word word<|im_end|>"))
    limits = limited(rollout_ground.LIMITS, 2 * one + 2)
    played = await rollout_ground.play(solve, policy, limits=limits)
    assert played.report.stop_reason is StopReason.RESPONSE_LIMIT
    assert [turn.max_new_tokens for turn in policy.sampling][-1] == 2
    assert sum(len(ids) for _, ids in policy.asked) == 2 * one + 2


async def test_answers_that_are_asked_for_at_once_share_them() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        async with anyio.create_task_group() as group:
            for place in range(4):
                message = {"role": "user", "content": f"word {place}"}
                group.start_soon(chat.complete, [message])
        return 1.0

    policy = Policy(lambda _: "word " * 30)
    await rollout_ground.play(solve, policy, limits=limited(rollout_ground.LIMITS, 40))
    assert 0 < sum(turn.max_new_tokens for turn in policy.sampling) <= 40


def config_of(*flags: str) -> RunConfig:
    words = ["--preset", DEFAULT, "--device", "cpu", *flags]
    return parse(words, "train_async").config


def test_the_flag_reaches_episodes_of_training_and_of_evaluations() -> None:
    settings = WorkerSettings.from_config(
        config_of("--max-episode-tokens", "77"), MODEL, 512, {"retriever": "http://x"}
    )
    assert settings.limits.max_episode_tokens == 77
    assert settings.limits.evaluation is not None
    assert settings.limits.evaluation.max_episode_tokens == 77


def test_min_p_is_for_evaluations_alone() -> None:
    config = config_of("--eval-min-p", "0.1")
    assert evaluation_turns(config).min_p == 0.1
    assert training_turns(config).min_p == 0.0
