"""The client of the engines over weight pushes: what is asked for again, and where."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from agentrl.columns import CACHE_VERSIONS
from agentrl.serving.client import EngineClient
from agentrl.types import EngineAddress, Generation, SamplingParams
from tests.unit.test_serving_client import SAMPLING, reply, serving

pytestmark = pytest.mark.anyio


async def test_without_partial_rollout_a_turn_is_asked_for_again_from_its_prompt() -> None:
    spans = iter([[("3", 0, 1), ("4", 1, 2)], [("4", 0, 2)]])

    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7, 8], versions=next(spans))

    async with serving(answer, partial_rollout=False) as (client, server):
        turn = await client.generate([1, 2], SAMPLING, routing_key="e", priority=0)
    assert (turn.versions, turn.num_resamples) == ([4, 4], 1)
    first, second = server.requests
    assert first["rid"] != second["rid"]
    assert {**first, "rid": ""} == {**second, "rid": ""}


async def test_new_weights_abort_turns_on_engines_and_leave_those_that_wait_in_place() -> None:
    arrived = anyio.Event()

    async def answer(body: dict[str, Any]) -> web.Response:
        if arrived.is_set():
            return reply([7])
        arrived.set()
        await anyio.sleep(30)
        return reply([9])

    taken: list[tuple[int, int]] = []

    async def turn(client: EngineClient, token: int) -> None:
        turn = await client.generate([token], SAMPLING, routing_key="e", priority=token)
        taken.append((token, turn.num_resamples))

    async with serving(answer, partial_rollout=False, num_permits=1) as (client, server):
        async with anyio.create_task_group() as group:
            group.start_soon(turn, client, 1)
            await arrived.wait()
            group.start_soon(turn, client, 2)
            await anyio.wait_all_tasks_blocked()
            client.new_weights(1)
        assert server.aborted == [server.requests[0]["rid"]]
    assert taken == [(1, 1), (2, 0)]


async def test_turns_are_aborted_where_engines_are_now() -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        await anyio.sleep(30)
        return reply([9])

    async with serving(answer) as (client, server):
        here = client._engines
        client.moved([EngineAddress("engine-0", "http://127.0.0.1:1")])
        with anyio.move_on_after(0.2):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)
        assert server.aborted == []
        client.moved(here)
        with anyio.move_on_after(0.2):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)
        assert server.aborted == [server.requests[-1]["rid"]]


@pytest.mark.parametrize("seeded", [True, False])
async def test_a_turn_brings_its_seed_to_engines_that_draw_by_it(seeded: bool) -> None:
    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([7])

    async with serving(answer, seeded=seeded) as (client, server):
        sampling = SamplingParams(max_new_tokens=1, seed=11)
        await client.generate([1], sampling, routing_key="e", priority=0)
    asked = server.requests[0]["sampling_params"]
    assert asked.get("sampling_seed") == (11 if seeded else None)


@pytest.mark.parametrize(("versions", "filled"), [(1, [-1, 3, 4]), (3, [-1, 3, 3])])
async def test_turns_of_a_version_have_a_part_of_the_cache_that_older_weights_did_not_fill(
    versions: int, filled: list[int]
) -> None:
    async def answer(_: dict[str, Any]) -> web.Response:
        return reply([7, 8], versions=[("4", 0, 2)], logprobs=[-0.1, -0.2])

    async def ask(client: EngineClient) -> Generation:
        return await client.generate([1, 2], SAMPLING, routing_key="episode", priority=0)

    parts: list[str] = []
    for _ in range(2):
        async with serving(answer, cache_versions=versions) as (client, server):
            turns = [await ask(client)]
            for version in (3, 4):
                client.new_weights(version)
                turns.append(await ask(client))
            parts += [body["extra_key"] for body in server.requests]
        told = [turn.columns[CACHE_VERSIONS].tolist() for turn in turns]
        assert told == [[version] * 2 for version in filled]
    assert parts[1:3] == parts[4:6] == [f"version-{version}" for version in filled[1:]]
    assert parts[0] != parts[3], "a client that begins does not know what engines serve"
    async with serving(answer) as (client, server):
        turn = await ask(client)
    assert "extra_key" not in server.requests[0]
    assert turn.columns == {}
