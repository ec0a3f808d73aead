"""Clients of the recording endpoint that are slow, or go: what they hold, and for how long.

Deadlines here are short so that a test need not wait; what is slow in them never comes to an end.
"""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
import psutil
import pytest
from anyio.abc import SocketStream

from agentrl.actors.endpoint.recorder import CallRecorder
from agentrl.actors.endpoint.server import Endpoint
from agentrl.envs.rollout import Chat
from agentrl.types import Outcome, SamplingParams, StopReason
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, Policy, check_tokens, play

pytestmark = pytest.mark.anyio

QUESTION: list[Any] = [{"role": "user", "content": "Double 21."}]
BODY = msgspec.json.encode({"messages": QUESTION})
#: More than the buffers of two sockets hold.
LONG = "漢" * 40_000
LONG_LIMITS = msgspec.structs.replace(LIMITS, max_context=10**7)
LONG_ASSIGNMENT = msgspec.structs.replace(
    ASSIGNMENT, sampling=SamplingParams(max_new_tokens=2 * 10**6)
)


def head(key: str, length: int = len(BODY)) -> bytes:
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[SocketStream]:
    url = urlsplit(await endpoint.url())
    async with await anyio.connect_tcp(str(url.hostname), int(url.port or 0)) as stream:
        yield stream


async def received(stream: SocketStream) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            data += await stream.receive()
    return data


async def asked(endpoint: Endpoint, key: str) -> bytes:
    """The answer to a call as it should be."""
    async with connected(endpoint) as stream:
        await stream.send(head(key).replace(b"Host", b"Connection: close\r\nHost") + BODY)
        return await received(stream)


def recorder_of(policy: Policy, **limits: Any) -> CallRecorder:
    return CallRecorder(ASSIGNMENT, CHAT, msgspec.structs.replace(LIMITS, **limits), policy)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", head("key")[:-2]])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with Endpoint(idle_s=3.0) as endpoint:
        key = endpoint.open(recorder_of(Policy(lambda prompt: "42<|im_end|>")))
        async with connected(endpoint) as stream:
            if sent:
                await stream.send(sent)
            assert await received(stream) == b""
        assert b"42" in await asked(endpoint, key)


async def test_a_body_that_does_not_arrive_is_refused_while_others_are_answered() -> None:
    recorder = recorder_of(Policy(lambda prompt: "42<|im_end|>"))
    async with Endpoint(read_s=0.2) as endpoint:
        key = endpoint.open(recorder)
        async with connected(endpoint) as stream:
            await stream.send(head(key, 10**6) + BODY)
            assert b"42" in await asked(endpoint, key)
            said = await stream.receive()
            assert b" 408 " in said.splitlines()[0]
            assert b'"request_timeout"' in said
        assert recorder.num_calls == 1
        assert recorder.refused is None


async def test_a_body_on_its_way_is_refused_when_its_episode_ends() -> None:
    recorder = recorder_of(Policy([]))
    held = weakref.ref(recorder)
    async with Endpoint() as endpoint:
        key = endpoint.open(recorder)
        async with connected(endpoint) as stream:
            await stream.send(head(key, 10**6) + BODY)
            while not recorder._arriving:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            endpoint.close(key)
            said = await stream.receive()
            assert b" 410 " in said.splitlines()[0]
            assert b'"episode_ended"' in said
            del recorder
            gc.collect()
            assert held() is None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_not_read_holds_neither_its_episode_nor_the_others(
    stream: bool,
) -> None:
    policy = Policy(lambda prompt: f"{LONG}<|im_end|>")
    recorder = CallRecorder(LONG_ASSIGNMENT, CHAT, LONG_LIMITS, policy)
    held = weakref.ref(recorder)
    body = msgspec.json.encode({"messages": QUESTION, "stream": stream})
    async with Endpoint(write_s=0.5) as endpoint:
        key = endpoint.open(recorder)
        url = urlsplit(await endpoint.url())
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((url.hostname, url.port))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            # the answers to all of them are more than the kernel takes
            await loop.sock_sendall(client, (head(key, len(body)) + body) * 40)
            while not recorder.num_calls:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            other = endpoint.open(recorder_of(Policy(lambda prompt: "42<|im_end|>")))
            assert b"42" in await asked(endpoint, other)
            await left_alone(client)
        assert 0 < recorder.num_calls < 40
        endpoint.close(key)
        del recorder
        policy.asked.clear()
        gc.collect()
        assert held() is None


async def test_the_end_of_an_answer_that_is_not_read_holds_no_connection() -> None:
    """The kernel has taken all but little of it, and the rest would be waited for without end."""
    policy = Policy(lambda prompt: f"{'word ' * 3000}<|im_end|>")
    recorder = CallRecorder(
        LONG_ASSIGNMENT, CHAT, msgspec.structs.replace(LONG_LIMITS, max_turns=10**4), policy
    )
    async with Endpoint(write_s=5.0) as endpoint:
        key = endpoint.open(recorder)
        url = urlsplit(await endpoint.url())
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((url.hostname, url.port))
            client.setblocking(False)
            held = 0
            while not held:
                num_calls = recorder.num_calls
                await asyncio.get_running_loop().sock_sendall(client, head(key) + BODY)
                while recorder.num_calls == num_calls:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await anyio.sleep(0.01)
                assert endpoint._runner is not None
                assert endpoint._runner.server is not None
                (connection,) = endpoint._runner.server.connections
                assert connection.transport is not None
                held = connection.transport.get_write_buffer_size()
            assert held < 2**16, "more than asyncio lets go by"
            with anyio.move_on_after(300) as waited:
                await left_alone(client)
            assert not waited.cancelled_caught, (connection, connection.transport)


async def test_a_client_that_has_gone_as_its_answer_came_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Gone(Policy):
        """The connection is closing when the answer comes; asyncio tells only afterwards."""

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            generation = await super().generate(*args, **kwargs)
            assert endpoint._runner is not None
            assert endpoint._runner.server is not None
            (connection,) = endpoint._runner.server.connections
            assert connection.transport is not None
            connection.transport.close()
            return generation

    async with Endpoint() as endpoint:
        key = endpoint.open(recorder_of(Gone(lambda prompt: "42<|im_end|>")))
        assert await asked(endpoint, key) == b""
    assert not caplog.records


async def left_alone(client: socket.socket) -> None:
    """Wait until this process has closed the other end of the connection, of which nothing is
    read."""
    here = psutil.Process()
    # both ends: a port alone may be that of another connection of this process
    ends = client.getpeername(), client.getsockname()
    while any((c.laddr, c.raddr) == ends for c in here.net_connections("tcp")):  # noqa: ASYNC110
        await anyio.sleep(0.05)


# ---- calls that nobody waits for ----


async def test_calls_that_the_agent_gave_up_are_counted() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        with anyio.move_on_after(0.05):
            await chat.complete(QUESTION)
        url = urlsplit(chat.base_url)
        async with await anyio.connect_tcp(str(url.hostname), int(url.port or 0)) as stream:
            await stream.send(head(chat.api_key) + BODY)
            while len(policy.prompts) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        async with await anyio.connect_tcp(str(url.hostname), int(url.port or 0)) as stream:
            await stream.send(head(chat.api_key, 10**6) + BODY)  # no call yet, so none given up
        while given_up < 2:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        await chat.complete(QUESTION)
        return 1.0

    given_up = 0
    policy = Policy(lambda prompt: "42<|im_end|>")
    policy.held |= {0: anyio.Event(), 1: anyio.Event()}
    generate = policy.generate

    async def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal given_up
        try:
            return await generate(*args, **kwargs)
        except BaseException:
            given_up += 1
            raise

    policy.generate = watched  # type: ignore[method-assign]
    played = await play(solve, policy)
    assert played.report.metrics["abandoned_calls"] == 2.0
    assert played.report.metrics["refused_calls"] == 0.0
    check_tokens(played, policy)


@pytest.mark.parametrize("by_http", [False, True])
async def test_a_call_that_the_episode_s_time_has_ended_was_not_given_up(by_http: bool) -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(QUESTION)
        if not by_http:
            await chat.complete(QUESTION)
        url = urlsplit(chat.base_url)
        async with await anyio.connect_tcp(str(url.hostname), int(url.port or 0)) as stream:
            await stream.send(head(chat.api_key) + BODY)
            await received(stream)
        return 1.0

    policy = Policy(lambda prompt: "42<|im_end|>")
    policy.held[1] = anyio.Event()
    played = await play(
        solve, policy, limits=msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    )
    assert played.report.outcome is Outcome.DONE
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    assert played.report.metrics["abandoned_calls"] == 0.0
