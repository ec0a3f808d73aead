"""The episode loop against a scripted engine: its outcomes and rewards, and whose tokens are
whose."""

from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.columns import COLUMNS, EXCLUDED, dealt
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import EngineError
from agentrl.tokens.chat import ToolCall
from agentrl.tokens.formats.qwen3_coder import Qwen3CoderFormat
from agentrl.tools.tool import tool
from agentrl.types import Outcome, SpanKind, StopReason
from agentrl.wire.arrays import as_arrays
from tests.unit.played_episodes import ASSIGNMENT, CALL, CHAT, LIMITS, Doubler, ScriptedClient, play

pytestmark = pytest.mark.anyio


def columns_of(played: PlayedEpisode) -> dict[str, np.ndarray[Any, Any]]:
    pairs = zip(COLUMNS.values(), played.columns, strict=True)
    return {column.name: np.frombuffer(data, column.dtype) for column, data in pairs}


async def test_a_tool_call_is_run_and_its_answer_scored() -> None:
    client = ScriptedClient(CALL, "42<|im_end|>")
    played = await play(Doubler, client)
    report = played.report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.TERMINATED)
    assert report.reward == 1.0
    assert report.metrics["tool_calls"] == 1.0
    by_turn = [len(CHAT.vocab.encode_trusted(text)) for text in (CALL, "42<|im_end|>")]
    assert report.trajectories[0].versions == [(1, by_turn[0]), (2, by_turn[1])]


class Paying(Doubler):
    """Pays for each turn: 0.5, then as `score` says."""

    async def step(self, turn: AssistantTurn) -> Step:
        step = await super().step(turn)
        step.reward += 0.5 * (turn.index == 0)
        return step


async def test_what_a_turn_earned_before_the_last_is_told_by_turn() -> None:
    played = await play(Paying, ScriptedClient(CALL, CALL, "42<|im_end|>"))
    assert played.report.reward == 1.5
    assert played.report.facts.turn_rewards == (0.5, 0.0, 1.0)
    at_the_end = await play(Paying, ScriptedClient("42<|im_end|>"))
    assert (at_the_end.report.reward, at_the_end.report.facts.turn_rewards) == (1.5, ())
    usual = await play(Doubler, ScriptedClient(CALL, "42<|im_end|>"))
    assert (usual.report.reward, usual.report.facts.turn_rewards) == (1.0, ())


class Unlike(Doubler):
    """Rewards evaluations otherwise; a fresh one finds the same."""

    reward_reads_text_only = True

    async def score(self, text: str) -> float:
        return 0.25 if self.is_evaluation else 0.75


@pytest.mark.parametrize(("evaluation", "reward"), [(None, 0.75), ("heldout", 0.25)])
async def test_an_env_knows_whether_it_is_evaluated(evaluation: str | None, reward: float) -> None:
    assignment = msgspec.structs.replace(ASSIGNMENT, evaluation=evaluation)
    player = Player(EnvEpisodes(Unlike, CHAT, LIMITS))
    played = await player.play(assignment, ScriptedClient("42<|im_end|>"))
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, reward)


async def test_arguments_that_do_not_say_their_type_have_that_of_their_tool() -> None:
    class Repeater(Doubler):
        @tool
        async def repeat(self, text: str) -> str:
            """Say it twice."""
            return text * 2

    chat = Qwen3CoderFormat(CHAT.vocab)
    said = chat.vocab.decode(chat.write("", [ToolCall("", "repeat", b'{"text": "21"}')]))
    client = ScriptedClient(said, "42<|im_end|>")
    limits = msgspec.structs.replace(LIMITS, max_prompt=2000, max_context=4000)
    played = await Player(EnvEpisodes(Repeater, chat, limits)).play(ASSIGNMENT, client)
    assert played.report.reward == 1.0
    assert "\n2121\n" in chat.vocab.decode(client.prompts[1])


async def test_only_what_the_engine_sampled_is_marked_sampled() -> None:
    client = ScriptedClient(CALL, "42<|im_end|>")
    played = await play(Doubler, client)
    columns = columns_of(played)
    sampled = columns["kinds"] == SpanKind.SAMPLED
    expected = CHAT.vocab.encode_trusted(CALL) + CHAT.vocab.encode_trusted("42<|im_end|>")
    assert columns["tokens"][sampled].tolist() == expected
    assert set(columns["versions"][sampled]) == {1, 2}
    assert (columns["versions"][~sampled] == -1).all()
    assert (columns["logprobs"][sampled] == -0.5).all()


class Unsure(Env):
    """Has the first of two turns left out."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("Well?")]

    async def step(self, turn: AssistantTurn) -> Step:
        begins = turn.index == 0
        return Step(messages=[Message.user("So?")], excluded=begins, terminated=not begins)


async def test_a_turn_that_its_env_excludes_is_marked_and_no_other() -> None:
    played = await play(Unsure, ScriptedClient("well<|im_end|>", "so<|im_end|>"))
    (meta,) = played.report.trajectories
    assert meta.columns == (EXCLUDED,)
    columns = as_arrays(meta.layout, meta.num_tokens, dealt([meta.layout], played.columns)[0])
    sampled = columns["kinds"] == SpanKind.SAMPLED
    assert columns["excluded"].tolist() == (sampled & (columns["turns"] == 0)).tolist()
    assert columns["excluded"].any()


async def test_each_prompt_begins_with_the_one_before_and_what_was_sampled() -> None:
    client = ScriptedClient(CALL, "42<|im_end|>")
    await play(Doubler, client)
    first, second = client.prompts
    grown = first + CHAT.vocab.encode_trusted(CALL)
    assert second[: len(grown)] == grown
    assert "42" in CHAT.vocab.decode(second[len(grown) :])


async def test_a_turn_stops_at_the_formats_own_tokens() -> None:
    client = ScriptedClient("42<|im_end|>")
    await play(Doubler, client)
    assert set(CHAT.stop_ids) <= set(client.sampling[0].stop_token_ids)


async def test_an_engine_failure_is_an_engine_error_without_a_trajectory() -> None:
    played = await play(Doubler, ScriptedClient(CALL, EngineError("engine-0 is gone")))
    assert played.report.outcome is Outcome.ENGINE_ERROR
    assert str(played.report.error).startswith("EngineError: engine-0 is gone")
    assert played.report.trajectories == []
    assert played.columns == []


async def test_an_env_that_raises_is_an_env_error_and_is_closed() -> None:
    class Broken(Doubler):
        async def score(self, text: str) -> float:
            raise KeyError("gold")

    before = Doubler.closed
    Broken.closed = before
    played = await play(Broken, ScriptedClient("42<|im_end|>"))
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "KeyError" in str(played.report.error)
    assert Broken.closed == before + 1


async def test_a_turn_without_a_token_is_the_engines_failure() -> None:
    played = await play(Doubler, ScriptedClient(""))
    assert played.report.outcome is Outcome.ENGINE_ERROR


@pytest.mark.parametrize(
    ("turns", "tool_use"),
    [
        ([CALL, "42<|im_end|>"], 1.0),
        (["42<|im_end|>"], 0.0),
        (["<tool_call>\nnonsense\n</tool_call><|im_end|>", "42<|im_end|>"], 1.0),
    ],
    ids=["call", "none", "malformed"],
)
async def test_an_episode_says_whether_it_tried_to_call_a_tool(
    turns: list[str], tool_use: float
) -> None:
    played = await play(Doubler, ScriptedClient(*turns))
    assert played.report.metrics["tool_use"] == tool_use


async def test_an_env_without_tools_has_no_tool_use_to_tell() -> None:
    class Plain(Env):
        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            return [Message.user("2 * 21?")]

        async def score(self, text: str) -> float:
            return 1.0

    played = await play(Plain, ScriptedClient("42<|im_end|>"))
    assert "tool_use" not in played.report.metrics
