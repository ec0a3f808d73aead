"""Who asks the retriever slowly, too much or nonsense gets an answer, and holds up nobody else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest
from aiohttp import web

from agentrl.envs.search_r1.retriever import MAX_WAITING, Index, create_app
from agentrl.tools.retriever import Retriever

pytestmark = [pytest.mark.anyio]

ASK = b'{"queries": ["capital of France"]}'
DEEP = b"[" * 20_000
BODIES = {
    "nothing": b"",
    "no JSON": b"queries=x",
    "deep": DEEP + b"]" * 20_000,
    "deep and cut": DEEP,
    "deep under an unknown name": b'{"x": ' + DEEP + b"]" * 20_000 + b"}",
    "no text": b'{"queries": ["\xff\xfe"]}',
    "half a surrogate": b'{"queries": ["\\ud800"]}',
    "a long query": b'{"queries": ["' + b"x" * 1001 + b'"]}',
    "many queries": b'{"queries": [' + b'"x",' * 64 + b'"x"]}',
    "no queries": b'{"queries": []}',
    "a great topk": b'{"queries": ["x"], "topk": 9223372036854775808}',
    "a huge number": b'{"queries": ["x"], "topk": 1e999}',
    "control characters": b'{"queries": ["\\u0000\\u001b[2J"]}',
}


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    runner = web.AppRunner(
        create_app(Index(["Paris is the capital of France.", "Lyon."])), shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0]
    await runner.cleanup()


def head(length: int) -> bytes:
    return b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


async def answered(address: tuple[str, int], said: bytes) -> bytes:
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(said)
        with anyio.fail_after(300):
            return await stream.receive()


async def ask(address: tuple[str, int]) -> list[str]:
    async with Retriever(f"http://{address[0]}:{address[1]}", patience_s=5) as client:
        with anyio.fail_after(300):
            return await client.search("capital of France")


@pytest.mark.parametrize("what", BODIES)
async def test_nonsense_is_refused_in_words(address: tuple[str, int], what: str) -> None:
    body = BODIES[what]
    answer = await answered(address, head(len(body)) + body)
    status = answer.split(b" ")[1]
    assert status == (b"200" if what == "control characters" else b"400"), answer
    assert await ask(address) == ["Paris is the capital of France."]


async def test_who_sends_half_a_question_holds_up_nobody(address: tuple[str, int]) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(MAX_WAITING + 1):
            stream = await opened.enter_async_context(await anyio.connect_tcp(*address))
            await stream.send(head(len(ASK)) + ASK[:5])
        assert await ask(address) == ["Paris is the capital of France."]


@pytest.mark.parametrize("said", [b"P", b"POST /retr", b"POST /retrieve HTTP/1.1\r\nHost: x\r\n"])
async def test_who_never_ends_a_request_holds_up_nobody(
    address: tuple[str, int], said: bytes
) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(MAX_WAITING + 1):
            stream = await opened.enter_async_context(await anyio.connect_tcp(*address))
            await stream.send(said)
        assert await ask(address) == ["Paris is the capital of France."]


async def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(
    address: tuple[str, int],
) -> None:
    assert b" 413 " in await answered(address, head(10**9) + b"x" * 70_000)
    chunked = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert b" 413 " in await answered(address, chunked + 3 * chunk)
    assert await ask(address) == ["Paris is the capital of France."]
