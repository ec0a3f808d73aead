"""The turn client against a server that speaks /generate and /abort_request as SGLang does."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from agentrl.errors import EngineError, TokenError
from agentrl.serving.client import EngineClient
from agentrl.types import EngineAddress, EngineKind, SamplingParams

pytestmark = pytest.mark.anyio

Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]
SAMPLING = SamplingParams(temperature=0.5, max_new_tokens=6, stop_token_ids=(9,))


def reply(
    ids: list[int],
    *,
    versions: list[tuple[str, int, int]] | None = None,
    logprobs: list[float | None] | None = None,
    finish: dict[str, Any] | None = None,
) -> web.Response:
    values = logprobs if logprobs is not None else [-0.5] * len(ids)
    spans = versions if versions is not None else [("3", 0, len(ids))]
    return web.json_response(
        {
            "output_ids": ids,
            "meta_info": {
                "id": "unused",
                "finish_reason": finish or {"type": "length", "length": len(ids)},
                "prompt_tokens": 2,
                "weight_version": "3",
                "weight_versions": [{"version": v, "start": s, "end": e} for v, s, e in spans],
                "output_token_logprobs": [[p, i, None] for p, i in zip(values, ids, strict=True)],
                "num_retractions": 1,
                "field_of_tomorrow": True,
            },
        }
    )


class Server:
    """Requests and headers seen by /generate, and ids aborted."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.aborted: list[str] = []
        self.abort_seen = anyio.Event()
        self._answer = answer

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers["X-SMG-Routing-Key"])
        return await self._answer(body)

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        self.abort_seen.set()
        return web.Response()


@asynccontextmanager
async def serving(
    answer: Answer,
    *,
    turn_timeout_s: float = 30,
    num_permits: int = 4,
    partial_rollout: bool = True,
    seeded: bool = False,
    attention_ranks: int = 1,
    cache_versions: int | None = None,
    kind: EngineKind = "regular",
    waits_for_weights: bool = False,
) -> AsyncIterator[tuple[EngineClient, Server]]:
    server = Server(answer)
    app = web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_post("/abort_request", server.abort)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    gone = EngineAddress("sglang-gone", "http://127.0.0.1:9")
    try:
        async with EngineClient(
            url,
            [EngineAddress("sglang-0", url, kind), gone],
            vocab_size=100,
            max_context=10,
            num_permits=num_permits,
            turn_timeout_s=turn_timeout_s,
            partial_rollout=partial_rollout,
            seeded=seeded,
            attention_ranks=attention_ranks,
            cache_versions=cache_versions,
            waits_for_weights=waits_for_weights,
        ) as client:
            yield client, server
    finally:
        await runner.cleanup()


async def test_a_turn_comes_back_with_a_logprob_and_a_version_for_each_token() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply(
            [7, 8, 9],
            versions=[("3", 0, 2), ("12", 2, 3)],
            logprobs=[-0.1, -0.2, -0.3],
            finish={"type": "stop", "matched": 9},
        )

    async with serving(answer) as (client, server):
        turn = await client.generate([1, 2], SAMPLING, routing_key="episode", priority=0)
    assert turn.output_ids == [7, 8, 9]
    assert turn.logprobs == [-0.1, -0.2, -0.3]
    assert turn.versions == [3, 3, 12]
    assert (turn.finish_reason, turn.matched) == ("stop", 9)
    assert turn.num_retractions == 1
    [body] = server.requests
    assert body["input_ids"] == [1, 2]
    assert body["return_logprob"] is True
    assert body["sampling_params"]["stop_token_ids"] == [9]
    assert server.keys == ["episode"]
    assert len(body["rid"]) == 32
    assert server.aborted == []


async def test_every_attempt_has_its_own_request_id_and_stays_within_the_context() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7])

    async with serving(answer) as (client, server):
        for _ in range(2):
            await client.generate([1] * 7, SAMPLING, routing_key="e", priority=0)
    assert server.requests[0]["rid"] != server.requests[1]["rid"]
    assert server.requests[0]["sampling_params"]["max_new_tokens"] == 3


async def test_a_conversation_stays_with_the_group_of_ranks_that_has_its_cache() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7])

    async with serving(answer, attention_ranks=3) as (client, server):
        for key in "abcabcdda":
            await client.generate([1], SAMPLING, routing_key=key, priority=0)
    assert [body["data_parallel_rank"] for body in server.requests] == [0, 1, 2, 0, 1, 2, 0, 0, 0]


async def test_an_engine_whose_ranks_attend_together_is_told_of_no_group() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7])

    async with serving(answer) as (client, server):
        await client.generate([1], SAMPLING, routing_key="e", priority=0)
    assert "data_parallel_rank" not in server.requests[0]


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [([], "empty"), ([1, 100], "token id 100"), ([-1, 5], "token id -1"), ([1] * 10, "context")],
)
async def test_a_prompt_that_would_kill_an_engine_is_never_sent(
    ids: list[int], complaint: str
) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7])

    async with serving(answer) as (client, server):
        with pytest.raises(TokenError, match=complaint):
            await client.generate(ids, SAMPLING, routing_key="e", priority=0)
    assert server.requests == []


async def test_an_aborted_turn_is_returned_with_what_it_sampled() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7], finish={"type": "abort", "message": "Aborted"})

    async with serving(answer) as (client, _):
        turn = await client.generate([1], SAMPLING, routing_key="e", priority=0)
    assert (turn.finish_reason, turn.output_ids) == ("abort", [7])


@pytest.mark.parametrize(("status", "error"), [(400, TokenError), (500, EngineError)])
async def test_a_refusal_is_final_and_a_failure_is_given_up_in_the_end(
    status: int, error: type[Exception]
) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.Response(status=status, text="the reason")

    async with serving(answer) as (client, server):
        with pytest.raises(error, match=f"{status}: the reason"):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)
    assert len(server.requests) == (1 if status == 400 else 4)


async def test_a_turn_waits_for_an_engine_and_is_sent_again_under_a_new_id() -> None:
    statuses = iter([503, 500, 502])

    async def answer(body: dict[str, Any]) -> web.Response:
        status = next(statuses, 200)
        return reply([5]) if status == 200 else web.Response(status=status)

    async with serving(answer) as (client, server):
        generation = await client.generate([1, 2], SAMPLING, routing_key="e", priority=0)
    assert generation.output_ids == [5]
    assert [request["input_ids"] for request in server.requests] == [[1, 2]] * 4
    assert len({request["rid"] for request in server.requests}) == 4


async def test_a_turn_that_finds_no_engine_before_its_deadline_says_what_it_met() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.Response(status=503, text="no workers")

    async with serving(answer, turn_timeout_s=0.4) as (client, _):
        with pytest.raises(EngineError, match=r"deadline of 0\.4 s .* 503: no workers"):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)


async def test_a_turn_past_its_deadline_is_aborted_on_the_engines() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        await anyio.sleep(30)
        return reply([7])

    async with serving(answer, turn_timeout_s=0.2) as (client, server):
        with pytest.raises(EngineError, match=r"deadline of 0\.2 s"):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)
        assert server.aborted == [server.requests[0]["rid"]]
        assert client.permit_stats().in_use == 0


@pytest.mark.parametrize(("kind", "aborts"), [("regular", False), ("decode", True)])
async def test_of_a_pair_that_failed_the_engine_that_goes_on_is_told_to_stop(
    kind: EngineKind, aborts: bool
) -> None:
    """The router answers for the one that failed, and the other would wait for a cache."""
    answers = iter([web.Response(status=500), reply([7])])

    async def answer(body: dict[str, Any]) -> web.Response:
        return next(answers)

    async with serving(answer, kind=kind) as (client, server):
        turn = await client.generate([1], SAMPLING, routing_key="e", priority=0)
    assert turn.output_ids == [7]
    assert server.aborted == ([server.requests[0]["rid"]] if aborts else [])


async def test_a_cancelled_turn_is_aborted_on_the_engines_and_returns_its_permit() -> None:
    arrived = anyio.Event()

    async def answer(body: dict[str, Any]) -> web.Response:
        arrived.set()
        await anyio.sleep(30)
        return reply([7])

    async def turn(client: EngineClient) -> None:
        await client.generate([1], SAMPLING, routing_key="e", priority=0)

    async with serving(answer) as (client, server):
        async with anyio.create_task_group() as group:
            group.start_soon(turn, client)
            await arrived.wait()
            group.cancel_scope.cancel()
        assert server.aborted == [server.requests[0]["rid"]]
        assert client.permit_stats().in_use == 0


async def test_an_unreachable_router_is_an_engine_error() -> None:
    async with EngineClient(
        "http://127.0.0.1:9", [], vocab_size=9, max_context=9, num_permits=1, turn_timeout_s=0.4
    ) as client:
        with pytest.raises(EngineError, match=r"deadline of .* of episode failed"):
            await client.generate([1], SAMPLING, routing_key="episode", priority=0)


@pytest.mark.parametrize(
    ("ids", "versions", "logprobs", "complaint"),
    [
        ([7, 8], [("none", 0, 2)], None, "'none'"),
        ([7, 8], [("1", 0, 1)], None, "1 of 2"),
        ([7, 8], [("1", 1, 2)], None, "after 0 tokens"),
        ([7, 8], None, [-0.1, None], "1 logprobs do not match 2"),
    ],
)
async def test_a_reply_that_does_not_add_up_is_an_engine_error(
    ids: list[int],
    versions: list[tuple[str, int, int]] | None,
    logprobs: list[float | None] | None,
    complaint: str,
) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply(ids, versions=versions, logprobs=logprobs)

    async with serving(answer) as (client, _):
        with pytest.raises(EngineError, match=complaint):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)


async def test_a_reply_that_is_no_reply_is_an_engine_error() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return web.json_response({"text": "hello"})

    async with serving(answer) as (client, _):
        with pytest.raises(EngineError, match="cannot be read"):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)


async def test_the_oldest_turn_gets_the_next_permit() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        await anyio.sleep(0.01)
        return reply([7])

    async def turn(client: EngineClient, priority: int) -> None:
        await client.generate([priority], SAMPLING, routing_key="e", priority=priority)

    async with (
        serving(answer, num_permits=1) as (client, server),
        anyio.create_task_group() as group,
    ):
        for priority in (50, 40, 5, 30):
            group.start_soon(turn, client, priority)
            await anyio.lowlevel.checkpoint()
    assert [body["input_ids"][0] for body in server.requests] == [50, 5, 30, 40]
