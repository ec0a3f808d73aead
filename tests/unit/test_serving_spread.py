"""Turns on engines that no router knows: which one has a turn, and when it is waited for."""

from typing import Any

import anyio
import pytest
from aiohttp import web

from agentrl.errors import EngineError
from agentrl.serving.spread import SpreadClient
from agentrl.types import EngineAddress, Generation
from tests.unit.test_serving_client import SAMPLING, reply, serving

pytestmark = pytest.mark.anyio


async def of_one_version(body: dict[str, Any]) -> web.Response:
    return reply([5])


async def turn(client: SpreadClient, key: str) -> Generation:
    return await client.generate([1], SAMPLING, routing_key=key, priority=0)


async def test_the_turns_of_a_key_go_to_one_engine_and_keys_to_all_of_them() -> None:
    keys = [f"episode-{number}" for number in range(24)]
    async with serving(of_one_version) as (one, first), serving(of_one_version) as (two, second):
        client = SpreadClient({"eval-engine-0": one, "eval-engine-1": two})
        for key in [*keys, *keys]:
            await turn(client, key)
    assert {*first.keys} | {*second.keys} == {*keys}
    assert {*first.keys}.isdisjoint(second.keys)
    assert min(len(first.keys), len(second.keys)) >= 8


async def test_an_engine_that_has_moved_is_asked_where_it_is_now() -> None:
    async with serving(of_one_version) as (one, first), serving(of_one_version) as (two, second):
        client = SpreadClient({"eval-engine-0": one})
        await turn(client, "e")
        there = two._generate_url.removesuffix("/generate")
        client.moved([EngineAddress("eval-engine-0", there, "evaluation")])
        await turn(client, "e")
    assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_another_stands_in_for_an_engine_that_is_gone_until_it_is_told_of_again() -> None:
    """Also for a turn that waits for it."""
    async with serving(of_one_version) as (one, first), serving(of_one_version) as (two, second):
        there, other = (each._generate_url.removesuffix("/generate") for each in (one, two))
        client = SpreadClient({"eval-engine-0": one, "eval-engine-1": two})
        addresses = [
            EngineAddress("eval-engine-0", there, "evaluation"),
            EngineAddress("eval-engine-1", other, "evaluation"),
        ]
        one.at(EngineAddress("eval-engine-0", "http://127.0.0.1:9", "evaluation"))
        keys = [f"episode-{number}" for number in range(12)]
        with anyio.fail_after(30):
            async with anyio.create_task_group() as turns:
                for key in keys:
                    turns.start_soon(turn, client, key)
                while len(second.requests) < 4:  # noqa: ASYNC110 - the others wait in vain
                    await anyio.sleep(0.01)
                client.moved(addresses[1:])
        assert {*second.keys} == {*keys}
        client.moved([*addresses, EngineAddress("eval-engine-2", there, "evaluation")])
        for key in keys:
            await turn(client, key)
    assert first.requests


async def test_an_engine_without_published_weights_is_waited_for_where_it_is_to_get_some() -> None:
    labels = iter(["default", "default"])

    async def answer(body: dict[str, Any]) -> web.Response:
        return reply([5], versions=[(next(labels, "7"), 0, 1)])

    async with serving(answer, waits_for_weights=True) as (client, server):
        with anyio.fail_after(30):
            found = await client.generate([1], SAMPLING, routing_key="e", priority=0)
    assert (list(found.versions), len(server.requests)) == ([7], 3)

    labels = iter(["default"])
    async with serving(answer) as (client, _):
        with pytest.raises(EngineError, match="only published weights"):
            await client.generate([1], SAMPLING, routing_key="e", priority=0)
