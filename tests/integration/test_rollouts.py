"""Rollouts from assignment to report: outcomes, budgets, time, what is trained, agents in threads,
an agent framework as it comes from PyPI, and programs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import openai
import psutil
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.bounds import A_REWARD
from agentrl.columns import EXCLUDED, Column, most_bytes
from agentrl.envs.messages import Step
from agentrl.envs.program import Program
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ChatError, EngineError, InfrastructureError, TokenError
from agentrl.tokens import QwenFormat, Vocab
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.types import EpisodeSummary, Outcome, SpanKind, StopReason, Task
from tests.unit.rollout_ground import (
    ASSIGNMENT,
    CALL,
    CHAT,
    DOUBLE,
    LIMITS,
    Policy,
    check_tokens,
    columns_of,
    made_of,
    play,
    trained,
)

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
SHORT: Limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)


async def call_once(task: dict[str, Any], chat: Chat) -> float:
    await chat.complete(HELLO)
    return 0.5


# ---- outcomes ----


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (ValueError("no"), Outcome.ENV_ERROR),
        (SystemExit(1), Outcome.ENV_ERROR),
        (InfrastructureError("the judge is away"), Outcome.ENGINE_ERROR),
    ],
)
async def test_a_rollout_that_raises_is_no_zero(raised: BaseException, outcome: Outcome) -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        raise raised

    report = (await play(solve, Policy(["42"]))).report
    assert report.outcome is outcome
    assert report.trajectories == []
    assert str(raised) in str(report.error)


@pytest.mark.parametrize("returned", [None, float("nan"), "x", Step(messages=[], reward=1.0)])
async def test_what_is_no_reward_is_an_env_error(returned: Any) -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        return returned  # type: ignore[no-any-return]

    report = (await play(solve, Policy(["42"]))).report
    if isinstance(returned, Step):
        assert (report.outcome, report.reward) == (Outcome.DONE, 1.0)
    else:
        assert report.outcome is Outcome.ENV_ERROR
        said = f"solve returned {returned!r}; return {A_REWARD}, or a Step"
        assert said in str(report.error)


async def test_a_rollout_that_never_calls_its_model_is_an_env_error() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        return 1.0

    report = (await play(solve, Policy([]))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "made no call" in str(report.error)


async def test_a_step_carries_metrics_and_the_agent_s_own_budget() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        await chat.complete(HELLO)
        return Step(reward=2.0, truncated=True, metrics={"searches": 3})

    report = (await play(solve, Policy(["42"]))).report
    assert report.stop_reason is StopReason.ENV_TRUNCATED
    assert report.reward == 2.0
    assert report.metrics["searches"] == 3.0
    assert [meta.columns for meta in report.trajectories] == [()]


async def test_an_episode_that_its_agent_excludes_is_marked_as_a_whole() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> Step:
        await chat.complete(HELLO)
        return Step(reward=2.0, excluded=True)

    played = await play(solve, Policy(["42"]))
    assert [meta.columns for meta in played.report.trajectories] == [(EXCLUDED,)]
    assert (columns_of(played)[0]["excluded"] == 1).all()


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(EngineError("gone"), Outcome.ENGINE_ERROR), (TokenError("odd"), Outcome.ENV_ERROR)],
)
async def test_what_fails_below_ends_the_episode_whatever_the_agent_makes_of_it(
    failure: Exception, outcome: Outcome
) -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        try:
            await chat.complete(HELLO)
        except ChatError:
            return 1.0
        return 1.0

    report = (await play(solve, Policy([failure]))).report
    assert report.outcome is outcome
    assert str(failure) in str(report.error)


async def test_a_first_prompt_that_is_too_long_is_the_task_s_mistake() -> None:
    limits = msgspec.structs.replace(LIMITS, max_prompt=4)
    report = (await play(call_once, Policy(["42"]), limits=limits)).report
    assert report.outcome is Outcome.FILTERED
    assert "--rollout-max-prompt-len" in str(report.error)


async def test_an_agent_that_raises_at_a_spent_budget_is_truncated_and_has_earned_nothing() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        while True:
            await chat.complete(HELLO)

    policy = Policy(lambda prompt: "42<|im_end|>")
    played = await play(solve, policy, limits=msgspec.structs.replace(LIMITS, max_turns=3))
    assert played.report.outcome is Outcome.DONE
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert played.report.reward == 0.0
    assert len(policy.asked) == 3
    check_tokens(played, policy)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_refusal_that_the_agent_got_over_neither_ends_nor_excuses_it(fails: bool) -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        with pytest.raises(ChatError):
            await chat.complete([{"role": "user", "content": "long " * 4000}])
        await chat.complete(HELLO)
        if fails:
            raise ConnectionError("the grader is gone")
        return 1.0

    policy = Policy(lambda prompt: "42<|im_end|>")
    limits = msgspec.structs.replace(LIMITS, max_prompt=10**6)
    report = (await play(made_of(solve), policy, limits=limits)).report
    if fails:
        assert report.outcome is Outcome.ENV_ERROR
        assert "grader is gone" in (report.error or "")
    else:
        assert (report.stop_reason, report.reward) == (StopReason.TERMINATED, 1.0)


async def test_agents_that_block_in_all_threads_are_answered_all_the_same() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        threads = anyio.to_thread.current_default_thread_limiter()
        blocked = [object() for _ in range(int(threads.total_tokens))]
        for one in blocked:
            await threads.acquire_on_behalf_of(one)
        try:
            with pytest.raises(ChatError, match="--rollout-max-context-len"):
                await chat.complete([{"role": "user", "content": "long " * 20_000}])
            await chat.complete(HELLO)
        finally:
            for one in blocked:
                threads.release_on_behalf_of(one)
        return 1.0

    limits = msgspec.structs.replace(LIMITS, max_prompt=10**6)
    played = await play(made_of(solve), Policy(lambda prompt: "42<|im_end|>"), limits=limits)
    assert played.report.outcome is Outcome.DONE


async def test_segments_beyond_what_a_report_can_carry_are_refused() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        while True:
            await chat.complete([{"role": "user", "content": "word " * 40}])

    limits = msgspec.structs.replace(LIMITS, max_bytes=most_bytes(800, ()))
    policy = Policy(lambda prompt: "42<|im_end|>")
    played = await play(made_of(solve), policy, limits=limits)
    assert played.report.stop_reason is StopReason.CONTEXT_LIMIT
    sizes = [meta.num_tokens for meta in played.report.trajectories]
    assert len(sizes) > 1
    assert sum(sizes) <= 800


async def test_what_the_engine_says_of_each_token_counts_in_what_a_report_can_carry() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        while True:
            await chat.complete([{"role": "user", "content": "word " * 40}])

    column = Column("experts", "|u1", (48, 8))
    limits = msgspec.structs.replace(LIMITS, max_bytes=2**18)
    played = await play(
        made_of(solve), Policy(lambda prompt: "42<|im_end|>", column=column), limits=limits
    )
    assert played.report.stop_reason is StopReason.CONTEXT_LIMIT
    assert len(played.report.trajectories) > 1
    assert sum(len(bytes(data)) for data in played.columns) <= limits.max_bytes


async def test_a_lost_service_is_no_truncation_though_a_budget_was_spent() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        with pytest.raises(ChatError, match="--max-turns"):
            await chat.complete(HELLO)
        raise InfrastructureError("the judge is away")

    limits = msgspec.structs.replace(LIMITS, max_turns=1)
    played = await play(solve, Policy(["42"]), limits=limits)
    assert played.report.outcome is Outcome.ENGINE_ERROR


async def test_time_that_runs_out_truncates_what_was_sampled() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        await anyio.sleep_forever()
        return 1.0

    policy = Policy(["42"])
    played = await play(solve, policy, limits=SHORT)
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    check_tokens(played, policy)


async def test_time_that_runs_out_before_the_first_token_is_no_truncation() -> None:
    async def idle(task: dict[str, Any], chat: Chat) -> float:
        await anyio.sleep_forever()
        return 1.0

    stuck = Policy(["42"])
    stuck.held[0] = anyio.Event()
    assert (await play(idle, Policy([]), limits=SHORT)).report.outcome is Outcome.ENV_ERROR
    assert (await play(call_once, stuck, limits=SHORT)).report.outcome is Outcome.ENGINE_ERROR


async def test_an_agent_in_a_thread_is_let_go_when_its_time_is_up() -> None:
    """A thread cannot be cancelled: its call is answered that the episode has ended."""
    said: list[str | None] = []
    http = httpx.Client()  # takes seconds on a busy machine, which are not the episode's

    def work(chat: Chat) -> float:
        url, key = chat.base_url, chat.api_key
        with openai.OpenAI(base_url=url, api_key=key, timeout=300, http_client=http) as client:
            messages: Any = HELLO
            client.chat.completions.create(model="m", messages=messages)
            try:
                client.chat.completions.create(model="m", messages=messages)
            except openai.APIStatusError as error:
                said.append(error.code)
        return 1.0

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        return await anyio.to_thread.run_sync(work, chat)

    policy = Policy(["42", "never"])
    policy.held[1] = anyio.Event()
    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=6.0)
    played = await play(solve, policy, limits=limits)
    assert said == ["episode_ended"]
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    check_tokens(played, policy)


async def test_the_group_is_shown_the_last_answer_where_it_is_compared() -> None:
    class Compared(Rollout):
        async def solve(self, task: dict[str, Any], chat: Chat) -> float:
            await chat.complete(HELLO)
            return 0.0

        async def score_group(
            self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
        ) -> list[float]:
            return [float(len(episode.answer)) for episode in episodes]

    assert (await play(Compared, Policy(["forty-two<|im_end|>"]))).report.answer == "forty-two"
    assert (await play(call_once, Policy(["forty-two<|im_end|>"]))).report.answer == ""


# ---- what is trained ----


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


# ---- agents as they come ----


async def test_an_agent_framework_from_pypi_is_trained_unchanged() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        provider = OpenAIProvider(base_url=chat.base_url, api_key=chat.api_key)
        agent = Agent(OpenAIChatModel("gpt-4o", provider=provider), instructions="Use the tool.")

        @agent.tool_plain
        def double(number: int) -> int:
            """Double a number."""
            calls.append(number)
            return 2 * number

        result = await agent.run(task["question"])
        return float(result.output == "It is 42.")

    calls: list[int] = []
    policy = Policy([f"I double it.{CALL}", "It is 42.<|im_end|>"])
    played = await play(solve, policy)
    assert played.report.error is None
    assert calls == [21]
    assert played.report.reward == 1.0
    assert [meta.num_turns for meta in played.report.trajectories] == [2]
    assert "Use the tool." in policy.prompts[0]
    check_tokens(played, policy)


AGENT = """
import json, os, subprocess, sys, time, urllib.request

key = os.environ["OPENAI_API_KEY"]

task = json.load(sys.stdin)
{before}
base = os.environ["OPENAI_BASE_URL"]
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["question"]}]})
head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
asked = urllib.request.Request(base + "/chat/completions", body.encode(), head)
with urllib.request.urlopen(asked) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
print("<tool_call>I print what I like</tool_call>")
{rest}
metrics = {"seed": int(os.environ["AGENTRL_SEED"])}
print(json.dumps({"reward": float(said == task["answer"]), "metrics": metrics}))
"""
#: Children that try to outlive it: in the session, and in one of their own.
LEAVES_CHILDREN = """
sleep = [sys.executable, "-c", "import time; time.sleep(600)", key]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
"""


def program(tmp_path: Path, rest: str = "", before: str = "", **variables: str) -> type[Rollout]:
    path = tmp_path / "agent.py"
    path.write_text(AGENT.replace("{rest}", rest).replace("{before}", before))

    class Here(Program):
        def __init__(self) -> None:
            super().__init__(argv=[sys.executable, str(path)], variables=variables)

    return Here


TASK = Task("t", {"question": "Double 21.", "answer": "42"})


def with_argument(key: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if key in (process.info["cmdline"] or ()) and process.info["status"] != "zombie"
    ]


async def test_a_program_is_an_agent_and_leaves_no_process(tmp_path: Path) -> None:
    keys: list[str] = []

    class Watched(program(tmp_path, before=LEAVES_CHILDREN)):  # type: ignore[misc]
        async def solve(self, task: dict[str, Any], chat: Chat) -> Any:
            keys.append(chat.api_key)
            return await super().solve(task, chat)

    policy = Policy(["42<|im_end|>"])
    played = await play(Watched, policy, task=TASK)
    assert played.report.error is None
    assert played.report.reward == 1.0
    assert played.report.metrics["seed"] == ASSIGNMENT.seed
    assert with_argument(keys[0]) == []
    check_tokens(played, policy)
    (columns,) = columns_of(played)
    assert "I print what I like" not in CHAT.vocab.decode(columns["tokens"].tolist())


async def test_a_program_that_is_cancelled_is_ended_with_its_children(tmp_path: Path) -> None:
    keys: list[str] = []
    are_up = anyio.Event()

    class Watched(program(tmp_path, "time.sleep(600)", before=LEAVES_CHILDREN)):  # type: ignore[misc]
        async def solve(self, task: dict[str, Any], chat: Chat) -> Any:
            keys.append(chat.api_key)
            return await super().solve(task, chat)

    def say(prompt: str) -> str:
        are_up.set()
        return "42<|im_end|>"

    async def interrupt() -> None:
        await are_up.wait()
        assert len(with_argument(keys[0])) == 2
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        await play(Watched, Policy(say), task=TASK)
    assert with_argument(keys[0]) == []


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("sys.exit('I give up')", "exit code 1: I give up"),
        ("print('no reward', flush=True); os._exit(0)", "'no reward', no reward"),
        ("sys.stdout.flush(); os._exit(0)", "'<tool_call>I print what I like</tool_call>'"),
        ("print('NaN', flush=True); os._exit(0)", "'NaN', no reward"),
        ("print('true', flush=True); os._exit(0)", "'true', no reward"),
    ],
)
async def test_a_program_that_fails_or_tells_no_reward_is_an_env_error(
    tmp_path: Path, rest: str, said: str
) -> None:
    report = (await play(program(tmp_path, rest), Policy(["42<|im_end|>"]), task=TASK)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert said in str(report.error)


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
