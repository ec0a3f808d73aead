"""How a rollout ends: an agent's errors, refusals, budgets and time, and what its report says of
them."""

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import openai
import pytest

from agentrl.actors.limits import Limits
from agentrl.bounds import A_REWARD
from agentrl.columns import EXCLUDED, Column, most_bytes
from agentrl.envs.messages import Step
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ChatError, EngineError, InfrastructureError, TokenError
from agentrl.types import EpisodeSummary, Outcome, StopReason
from tests.unit.rollout_ground import HELLO, LIMITS, Policy, check_tokens, columns_of, made_of, play

pytestmark = pytest.mark.anyio
SHORT: Limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)


async def call_once(task: dict[str, Any], chat: Chat) -> float:
    await chat.complete(HELLO)
    return 0.5


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
        await chat.complete(HELLO)
        return 1.0

    policy = Policy(["42", "never"])
    policy.held[1] = anyio.Event()
    played = await play(solve, policy, limits=SHORT)
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    check_tokens(played, policy)


async def test_an_agent_that_hangs_after_its_last_call_is_an_error_and_no_reward_of_0() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        await anyio.sleep_forever()
        return 1.0

    report = (await play(solve, Policy(["42"]), limits=SHORT)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "solve did not return within 3 s (--episode-timeout-s)" in str(report.error)


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
