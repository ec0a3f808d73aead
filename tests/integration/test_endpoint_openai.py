"""The recording endpoint and the real `openai` client: answers, streams, tools, refusals, many."""

import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import msgspec
import openai
import pytest

from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.endpoint.server import MAX_BODY, Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.envs.rollout import Chat
from agentrl.types import EpisodeId, Outcome, StopReason, Task
from tests.unit.rollout_ground import (
    ASSIGNMENT,
    CALL,
    CHAT,
    DOUBLE,
    LIMITS,
    Policy,
    check_tokens,
    made_of,
    play,
)

pytestmark = pytest.mark.anyio

TOOLS: list[Any] = [DOUBLE]
QUESTION: list[Any] = [{"role": "user", "content": "Double 21."}]


def client_of(chat: Chat) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=chat.base_url, api_key=chat.api_key)


async def test_a_tool_loop_of_the_openai_client_is_one_trajectory() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        async with client_of(chat) as client:
            while True:
                answer = await client.chat.completions.create(
                    model="gpt-4o", messages=messages, tools=TOOLS, temperature=0.2
                )
                choice = answer.choices[0]
                assert answer.usage is not None
                assert answer.usage.prompt_tokens == len(policy.asked[-1][0])
                assert answer.usage.completion_tokens == len(policy.asked[-1][1])
                messages.append(choice.message.model_dump())
                if not choice.message.tool_calls:
                    assert choice.finish_reason == "stop"
                    return float(choice.message.content == "42")
                assert choice.finish_reason == "tool_calls"
                (call,) = choice.message.tool_calls
                arguments = msgspec.json.decode(call.function.arguments)  # type: ignore[union-attr]
                result = str(2 * arguments["number"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    policy = Policy([CALL, "42<|im_end|>"])
    played = await play(solve, policy)
    report = played.report
    assert (report.outcome, report.stop_reason, report.reward) == (
        Outcome.DONE,
        StopReason.TERMINATED,
        1.0,
    )
    assert len(report.trajectories) == 1
    assert report.trajectories[0].num_turns == 2
    assert report.metrics["tool_calls"] == 1.0
    assert report.metrics["ignored_settings"] == 2.0
    assert {sampling.temperature for sampling in policy.sampling} == {1.0}
    check_tokens(played, policy)


async def test_a_streamed_answer_is_what_the_whole_one_would_be() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        messages: list[Any] = list(QUESTION)
        strict: Any = {"type": "function", "function": DOUBLE["function"] | {"strict": True}}
        async with client_of(chat) as client:
            stream = client.chat.completions.stream(
                model="m", messages=messages, tools=[strict], stream_options={"include_usage": True}
            )
            async with stream as events:
                first = await events.get_final_completion()
            message = first.choices[0].message
            assert message.tool_calls is not None
            assert message.tool_calls[0].function.arguments == '{"number": 21}'
            assert first.usage is not None
            assert first.usage.total_tokens == sum(map(len, policy.asked[0]))
            messages.append(message.model_dump(exclude={"parsed"}, exclude_none=True))
            call_id = message.tool_calls[0].id
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "42"})
            said = ""
            async for chunk in await client.chat.completions.create(
                model="m", messages=messages, tools=TOOLS, stream=True
            ):
                assert chunk.usage is None
                said += chunk.choices[0].delta.content or ""
            assert said == "It is 42."
        return 1.0

    policy = Policy([f"I call.{CALL}", "It is 42.<|im_end|>"])
    played = await play(solve, policy)
    assert len(played.report.trajectories) == 1
    check_tokens(played, policy)


async def test_the_client_lists_the_model() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        async with client_of(chat) as client:
            assert [model.id async for model in client.models.list()] == [chat.model]
        await chat.complete(QUESTION)
        return 0.0

    assert (await play(solve, Policy(["42"]))).report.outcome is Outcome.DONE


@asynccontextmanager
async def endpoint_of(policy: Policy) -> AsyncIterator[tuple[Endpoint, CallRecorder, str]]:
    """An endpoint with one open episode, and its key."""
    async with Endpoint() as endpoint:
        recorder = CallRecorder(ASSIGNMENT, CHAT, LIMITS, policy)
        yield endpoint, recorder, endpoint.open(recorder)


async def test_keys_open_their_own_episode_and_nothing_else() -> None:
    policy = Policy(lambda prompt: "42<|im_end|>")
    async with endpoint_of(policy) as (endpoint, recorder, key):
        other = CallRecorder(ASSIGNMENT, CHAT, LIMITS, policy)
        other_key = endpoint.open(other)
        url = await endpoint.url()
        assert url.startswith("http://127.0.0.1:")
        assert key not in url
        for wrong in ("", "x", key[:-1], key.upper()):
            with pytest.raises(openai.AuthenticationError) as refused:
                async with openai.AsyncOpenAI(base_url=url, api_key=wrong) as client:
                    await client.chat.completions.create(model="m", messages=QUESTION)
            assert refused.value.code == "invalid_api_key"
        async with openai.AsyncOpenAI(base_url=url, api_key=other_key) as client:
            await client.chat.completions.create(model="m", messages=QUESTION)
        assert (recorder.num_calls, other.num_calls) == (0, 1)
        endpoint.close(key)
        with pytest.raises(openai.APIStatusError) as ended:
            async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
                await client.chat.completions.create(model="m", messages=QUESTION)
        assert (ended.value.status_code, ended.value.code) == (410, "episode_ended")
        assert len(policy.asked) == 1, "a refused call is sampled, or a refusal is tried again"


async def test_an_ended_episode_is_not_kept_in_memory() -> None:
    endpoint = Endpoint()
    recorder = CallRecorder(ASSIGNMENT, CHAT, LIMITS, Policy([]))
    kept = weakref.ref(recorder)
    endpoint.close(endpoint.open(recorder))
    del recorder
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        (b"{", 400, None, "no chat completion request"),
        (b'{"messages": []}', 400, "messages", "at least one"),
        (b'{"messages": [{"role": "user", "content": 3}]}', 400, None, r"$.messages[0].content"),
        (b'{"messages": [{"role": "poet", "content": "x"}]}', 400, "messages", "'poet'"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', 400, "n", "send 2 requests"),
        (b'{"messages": ' + b"[" * 100_000, 400, None, "no chat completion request"),
        (b" " * (MAX_BODY + 1), 413, None, "larger than"),
    ],
)
async def test_a_bad_request_is_refused_in_openai_s_words(
    body: bytes, status: int, param: str | None, said: str
) -> None:
    async with endpoint_of(Policy([])) as (endpoint, _, key), aiohttp.ClientSession() as session:
        url = f"{await endpoint.url()}/chat/completions"
        head = {"Authorization": f"Bearer {key}"}
        async with session.post(url, data=body, headers=head) as answer:
            assert answer.status == status
            assert answer.headers["x-should-retry"] == "false"
            error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert said in error["message"]
        assert error["param"] == param


@pytest.mark.parametrize("path", ["/completions", "/chat/completions", "/../x"])
async def test_other_urls_are_refused_in_openai_s_words(path: str) -> None:
    async with endpoint_of(Policy([])) as (endpoint, *_), aiohttp.ClientSession() as session:
        url = f"{await endpoint.url()}{path}"
        async with session.get(url) as answer:
            assert answer.status in (404, 405)
            assert "/v1/chat/completions" in (await answer.json())["error"]["message"]


def spent(**limits: Any) -> Limits:
    return msgspec.structs.replace(LIMITS, **limits)


@pytest.mark.parametrize(
    ("limits", "reason", "code"),
    [
        (spent(max_turns=1), StopReason.TURN_LIMIT, "turn_limit"),
        (spent(max_tool_calls=0), StopReason.TOOL_CALL_LIMIT, "tool_call_limit"),
        (spent(max_context=340), StopReason.CONTEXT_LIMIT, "context_length_exceeded"),
    ],
)
async def test_a_spent_budget_refuses_the_call_and_is_the_stop_reason(
    limits: Limits, reason: StopReason, code: str
) -> None:
    codes: list[str | None] = []

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        async with client_of(chat) as client:
            for said in ("first", "second " * 200):
                try:
                    await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": said}], tools=TOOLS
                    )
                except openai.BadRequestError as refused:
                    codes.append(refused.code)
        return 0.25

    policy = Policy(lambda prompt: CALL)
    played = await play(solve, policy, limits=limits)
    assert codes[-1] == code
    assert played.report.stop_reason is reason
    assert played.report.reward == 0.25
    assert played.report.metrics["truncated"] == 1.0
    check_tokens(played, policy)


async def test_a_call_that_the_agent_gives_up_is_aborted_and_leaves_no_trace() -> None:
    policy = Policy(lambda prompt: "42<|im_end|>")
    policy.held[0] = anyio.Event()
    given_up: list[BaseException] = []
    generate = policy.generate

    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return await generate(*args, **kwargs)
        except BaseException as cancelled:
            given_up.append(cancelled)
            aborted.set()
            raise

    aborted = anyio.Event()
    policy.generate = watched  # type: ignore[method-assign]

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        impatient = openai.AsyncOpenAI(
            base_url=chat.base_url, api_key=chat.api_key, timeout=0.05, max_retries=0
        )
        with pytest.raises(openai.APITimeoutError):
            async with impatient:
                await impatient.chat.completions.create(model="m", messages=QUESTION)
        await aborted.wait()
        await chat.complete(QUESTION)
        return 1.0

    played = await play(solve, policy)
    assert given_up
    assert len(played.report.trajectories) == 1
    check_tokens(played, policy)


async def test_two_hundred_episodes_at_once_keep_their_tokens_apart() -> None:
    num, turns = 200, 3

    def say(prompt: str) -> str:
        return f"{prompt.rsplit('number ', 1)[1].split('.')[0]} it is.<|im_end|>"

    async def solve(task: dict[str, Any], chat: Chat) -> float:
        messages: list[Any] = []
        head = {"Authorization": f"Bearer {chat.api_key}"}
        for _ in range(turns):
            messages.append({"role": "user", "content": f"Say the number {task['number']}."})
            asked = {"model": chat.model, "messages": messages}
            url = f"{chat.base_url}/chat/completions"
            async with session.post(url, json=asked, headers=head) as answer:
                message = (await answer.json())["choices"][0]["message"]
            assert message["content"] == f"{task['number']} it is."
            messages.append(message)
        return float(task["number"])

    policies = [Policy(say) for _ in range(num)]
    solved: dict[int, Any] = {}
    make: Callable[[], Any] = made_of(solve)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        Endpoint() as endpoint,
        anyio.create_task_group() as group,
    ):
        player = Player(RolloutEpisodes(make, CHAT, LIMITS, endpoint))

        async def one(number: int) -> None:
            assignment = msgspec.structs.replace(
                ASSIGNMENT, id=EpisodeId("g", number), task=Task("t", {"number": number})
            )
            solved[number] = await player.play(assignment, policies[number])

        for number in range(num):
            group.start_soon(one, number)
    for number, policy in enumerate(policies):
        assert solved[number].report.reward == number
        assert solved[number].report.trajectories[0].num_turns == turns
        check_tokens(solved[number], policy)
