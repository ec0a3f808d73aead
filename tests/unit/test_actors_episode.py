"""The episode loop against a scripted engine: budgets, outcomes, and whose tokens are whose."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import agentrl.envs.search_r1
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.columns import COLUMNS, EXCLUDED, dealt
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import EngineError
from agentrl.tokens.chat import ToolCall
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.formats.qwen3_coder import Qwen3CoderFormat
from agentrl.tokens.vocab import Vocab
from agentrl.tools.tool import tool
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    Outcome,
    PermitStats,
    SamplingParams,
    SpanKind,
    StopReason,
    Task,
)
from agentrl.wire.arrays import as_arrays

pytestmark = pytest.mark.anyio

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
CHAT = load_format("qwen", MODEL)
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call><|im_end|>'
LIMITS = Limits(
    max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=300.0
)
SHORT = msgspec.structs.replace(LIMITS, episode_timeout_s=1.0)
ASSIGNMENT = EpisodeAssignment(
    id=EpisodeId("00000001", 0),
    mint=1,
    seed=7,
    task=Task("t", {"question": "Double 21."}),
    sampling=SamplingParams(max_new_tokens=64),
)


class ScriptedClient:
    """A TurnClient that samples given texts, one version later at each turn."""

    def __init__(
        self, *turns: str | Exception, finish: str = "stop", vocab: Vocab = CHAT.vocab
    ) -> None:
        self.vocab = vocab
        self.turns = list(turns)
        self.finish = finish
        self.prompts: list[list[int]] = []
        self.sampling: list[SamplingParams] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        self.prompts.append(list(input_ids))
        self.sampling.append(sampling)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        ids = self.vocab.encode_trusted(turn)[: sampling.max_new_tokens]
        version = len(self.prompts)
        return Generation(
            output_ids=ids,
            logprobs=[-0.5] * len(ids),
            versions=[version] * len(ids),
            finish_reason=self.finish,
        )

    def new_weights(self, _version: int) -> None:
        pass

    def permit_stats(self) -> PermitStats:
        return PermitStats()


class Doubler(Env):
    """Asks for 42; the answer must be the model's own."""

    closed = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    @tool
    async def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: what to double
        """
        return 2 * number

    async def score(self, text: str) -> float:
        return float(text.strip() == "42")

    async def close(self) -> None:
        type(self).closed += 1


async def play(
    env: type[Env], client: ScriptedClient, limits: Limits = LIMITS, question: str = "Double 21."
) -> PlayedEpisode:
    assignment = msgspec.structs.replace(ASSIGNMENT, task=Task("t", {"question": question}))
    return await Player(EnvEpisodes(env, CHAT, limits)).play(assignment, client)


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


async def test_a_hung_tool_is_cut_and_the_episode_goes_on() -> None:
    class Hung(Doubler):
        tool_timeout_s = 0.05

        @tool
        async def double(self, number: int) -> int:
            """Never answers."""
            await anyio.sleep_forever()
            return number

    client = ScriptedClient(CALL, "42<|im_end|>")
    played = await play(Hung, client)
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


async def test_a_prompt_longer_than_allowed_is_filtered_and_says_so() -> None:
    played = await play(Doubler, ScriptedClient(), question="Double 21. " * 400)
    assert played.report.outcome is Outcome.FILTERED
    assert "--rollout-max-prompt-len" in str(played.report.error)


async def test_turns_are_limited() -> None:
    played = await play(Doubler, ScriptedClient(*[CALL] * 4))
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert played.report.trajectories[0].num_turns == 4
    assert played.report.reward == 0.0


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


async def test_a_turn_without_a_token_is_the_engines_failure() -> None:
    played = await play(Doubler, ScriptedClient(""))
    assert played.report.outcome is Outcome.ENGINE_ERROR


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
