"""What of a rollout is trained: every turn of its agent once, after exactly what the engine was
given."""

from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.player import Player
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.envs.rollout import Chat
from agentrl.errors import ChatError
from agentrl.tokens import QwenFormat, Vocab
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.types import Outcome, SpanKind, StopReason
from tests.unit.rollout_ground import (
    ASSIGNMENT,
    CALL,
    CHAT,
    DOUBLE,
    HELLO,
    LIMITS,
    Policy,
    check_tokens,
    columns_of,
    made_of,
    play,
    trained,
)

pytestmark = pytest.mark.anyio


async def test_a_branch_is_a_segment_whose_prefix_is_context() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        first = await chat.complete(HELLO, [DOUBLE])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "42"}
        for _ in range(2):
            await chat.complete([*HELLO, first, result], [DOUBLE])
        return 1.0

    policy = Policy([CALL, "one<|im_end|>", "two<|im_end|>"])
    played = await play(solve, policy)
    assert played.report.metrics["segments"] == 2.0
    check_tokens(played, policy)
    main, branch = columns_of(played)
    assert [ids for _, ids in trained(played)] == [ids for _, ids in policy.asked]
    prefix = len(policy.asked[2][0])
    assert (branch["tokens"][:prefix] == main["tokens"][:prefix]).all()
    assert SpanKind.SAMPLED not in set(branch["kinds"][:prefix])
    assert set(branch["versions"][:prefix]) == {-1}
    words = branch["tokens"][branch["kinds"] == SpanKind.UNTRUSTED].tolist()
    assert '"double"' in CHAT.vocab.decode(words), "what an assistant said is vouched for"


async def test_a_compacted_history_begins_anew_with_real_marks_around_foreign_words() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        first = await chat.complete(HELLO, [DOUBLE])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "42"}
        await chat.complete([{"role": "user", "content": "short"}, first, result], [DOUBLE])
        return 1.0

    policy = Policy([CALL, "42<|im_end|>"])
    played = await play(solve, policy)
    assert len(played.report.trajectories) == 2
    check_tokens(played, policy)
    assert CALL.removesuffix("<|im_end|>") in policy.prompts[1]
    assert CHAT.vocab.control["<tool_call>"] in policy.asked[1][0]


async def test_roles_are_segments_of_one_episode_though_one_reads_what_another_read() -> None:
    """A selector goes on from the solver's own words: what it reads of them is context."""

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        solved = await chat.complete(HELLO, model="solver")
        asked = [*HELLO, solved, {"role": "user", "content": "again"}]
        await chat.complete(asked, model="selector")
        await chat.complete(asked, model="solver")
        await chat.complete(asked, model="x" * 65)
        return 1.0

    policy = Policy(["one<|im_end|>", "two<|im_end|>", "three<|im_end|>", "four<|im_end|>"])
    played = await play(made_of(solve), policy)
    check_tokens(played, policy)
    metas = played.report.trajectories
    assert [(meta.role, meta.num_turns) for meta in metas] == [
        ("solver", 2),
        ("selector", 1),
        ("policy", 1),
    ]
    assert {meta.reward for meta in metas} == {1.0}


async def test_other_tools_make_another_prompt(qwen_vocab: Vocab) -> None:
    chat = QwenFormat(qwen_vocab)  # it tells the model of its tools
    other = {"type": "function", "function": DOUBLE["function"] | {"name": "halve"}}

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        first = await chat.complete(HELLO, [DOUBLE])
        more = [*HELLO, first, {"role": "user", "content": "on"}]
        await chat.complete(more, [other])
        await chat.complete(more, [DOUBLE])
        return 1.0

    policy = Policy(lambda prompt: "42<|im_end|>", chat=chat)
    played = await play(solve, policy, chat=chat)
    assert ['"halve"' in prompt for prompt in policy.prompts] == [False, True, False]
    assert sorted(meta.num_turns for meta in played.report.trajectories) == [1, 2]
    check_tokens(played, policy, chat)


async def test_thoughts_that_the_format_forgets_begin_a_segment_without_them(
    qwen_vocab: Vocab,
) -> None:
    chat = StrippedQwen3Format(qwen_vocab)

    async def solve(task: dict[str, Any], model: Chat) -> float:
        messages: list[dict[str, Any]] = list(HELLO)
        for _ in range(3):
            messages.append(await model.complete(messages))
            messages.append({"role": "user", "content": "on"})
        return 1.0

    policy = Policy(lambda prompt: "<think>\nwhy\n</think>\n\n42<|im_end|>", chat=chat)
    played = await play(solve, policy, chat=chat)
    assert [meta.segment for meta in played.report.trajectories] == [0, 1, 2]
    assert ["why" in prompt for prompt in policy.prompts] == [False] * 3
    assert policy.prompts[2].count("42") == 2
    check_tokens(played, policy, chat)


async def test_of_two_answers_that_say_the_same_each_is_gone_on_from() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        same = [await chat.complete(HELLO) for _ in range(2)]
        for answer in same:
            await chat.complete([*HELLO, answer, {"role": "user", "content": "on"}])
        return 1.0

    policy = Policy(lambda prompt: "42<|im_end|>")
    played = await play(solve, policy)
    assert [meta.num_turns for meta in played.report.trajectories] == [2, 2]
    check_tokens(played, policy)


async def test_a_stop_string_ends_the_turn_at_the_token_that_completes_it() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        first = await chat.complete(HELLO, stop=["Observation:"], max_tokens=100)
        assert first["content"] == "Action: look\n"
        more = {"role": "user", "content": "Observation: nothing"}
        await chat.complete([*HELLO, first, more])
        return 1.0

    policy = Policy(["Action: look\nObservation: I dream<|im_end|>", "ok<|im_end|>"])
    played = await play(solve, policy)
    assert len(played.report.trajectories) == 1
    kept, _ = [CHAT.vocab.decode(ids) for _, ids in trained(played)]
    assert kept.startswith("Action: look\nObservation:")
    assert "dream" not in kept
    (first, *_), sampled = policy.sampling, policy.asked[0][1]
    assert first.max_new_tokens == 100
    assert trained(played)[0][1] == sampled[: len(trained(played)[0][1])]
    assert "dream" not in policy.prompts[1]


async def test_a_text_far_beyond_the_context_holds_nobody_up_and_is_refused() -> None:
    ended: list[str] = []

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)

        async def long() -> None:
            with pytest.raises(ChatError, match="--rollout-max-context-len"):
                await chat.complete([{"role": "user", "content": "words and more " * 100_000}])
            ended.append("long")

        async def short() -> None:
            await chat.complete(HELLO)
            ended.append("short")

        async with anyio.create_task_group() as group:
            group.start_soon(long)
            group.start_soon(short)
        return 1.0

    policy = Policy(lambda prompt: "42<|im_end|>")
    played = await play(solve, policy)
    assert ended == ["short", "long"]
    assert played.report.stop_reason is StopReason.CONTEXT_LIMIT
    check_tokens(played, policy)


async def test_half_a_call_and_calls_without_tools_are_text() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        half = await chat.complete(HELLO, [DOUBLE])
        assert half["content"].startswith("<tool_call>")
        for options in ({"tool_choice": "none"}, {}):
            tools = [DOUBLE] if options else None
            whole = await chat.complete(HELLO, tools, **options)
            assert "tool_calls" not in whole
            assert whole["content"] == CALL.removesuffix("<|im_end|>")
        return 1.0

    played = await play(solve, Policy([CALL[:20], CALL, CALL]))
    assert played.report.outcome is Outcome.DONE
    assert played.report.metrics["malformed_calls"] == 1.0
    assert played.report.metrics["tool_calls"] == 0.0


async def test_episodes_of_one_player_share_the_endpoint() -> None:
    urls: list[str] = []

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        urls.append(chat.base_url)
        await chat.complete(HELLO)
        return 1.0

    async with Endpoint() as endpoint:
        player = Player(RolloutEpisodes(made_of(solve), CHAT, LIMITS, endpoint))
        for _ in range(2):
            await player.play(ASSIGNMENT, Policy(["42"]))
    assert urls[0] == urls[1]
