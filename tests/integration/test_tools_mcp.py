"""Tools of real MCP servers, on stdio and over HTTP: what they say, and how they end."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest

from agentrl import AssistantTurn, ToolCall, load_env
from agentrl.envs.check import contract
from agentrl.envs.check.harness import Finding
from agentrl.envs.check.subject import Subject
from agentrl.errors import ConfigError, EnvError, InfrastructureError
from agentrl.tools import ToolResult, mcp, run_call
from agentrl.tools.mcp import McpServer, McpSpec
from agentrl.types import Task

pytestmark = pytest.mark.anyio

HANGS = "import time; time.sleep(600)"
SERVER = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = subprocess.Popen([*SERVER, "http"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    process.kill()
    process.wait()
    process.stdout.close()


@asynccontextmanager
async def opened(**spec: Any) -> AsyncIterator[McpServer]:
    server = McpServer(McpSpec(**spec))
    try:
        yield await server.open()
    finally:
        await server.close()


async def called(server: McpServer, name: str, raw: bytes = b"{}", limit_s: float = 60) -> str:
    result: ToolResult = await run_call(server, ToolCall("c", name, raw), limit_s)
    return result.text


def appears(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.01)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_server_says_what_it_has_and_answers(transport: str, url: str) -> None:
    spec: dict[str, Any] = {"url": url} if transport == "http" else {"command": SERVER}
    async with opened(**spec) as server:
        told = server.tools["add"].spec.to_openai()["function"]
        assert told["description"] == "Add two numbers."
        assert told["parameters"]["properties"]["a"]["type"] == "integer"
        assert told["parameters"]["required"] == ["a"]
        assert [name for name, tool in server.tools.items() if tool.parallel] == ["add"]
        assert await called(server, "add", b'{"a": 1}') == "3"
        assert await called(server, "shout", b'"loud"') == "LOUD"
        wrong = await called(server, "add", b'{"a": "x"}')
        assert wrong.startswith("error: ")
        assert "integer" in wrong
        assert await called(server, "add", b"[1]") == (
            "error: invalid arguments for add: Expected `object`, got `array`"
        )
        assert "not valid JSON" in await called(server, "add", b'{"a": ')
        flood = await called(server, "flood")
        assert flood.endswith("[output cut after 16384 bytes; it had 1000000 characters]")
        assert await called(server, "picture") == "a picture:\n[image left out]"


async def test_a_process_ends_with_its_connection_and_sees_little_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    before = children()
    async with opened(command=SERVER, env={"GIVEN": "1"}, tools=("environment",)) as server:
        assert list(server.tools) == ["environment"]
        assert len(children() - before) == 1
        seen = (await called(server, "environment")).split()
    assert "GIVEN" in seen
    assert "SECRET_KEY" not in seen
    assert children() <= before


async def test_a_server_that_dies_has_the_episode_played_again() -> None:
    async with opened(command=SERVER) as server:
        for name in ("die", "add"):
            with pytest.raises(InfrastructureError, match=rf"is gone \(tool {name}"):
                await called(server, name, b'{"a": 1}' if name == "add" else b"{}")


async def test_a_call_that_takes_too_long_is_told_and_the_server_is_ended() -> None:
    before = children()
    async with opened(command=SERVER) as server:
        assert await called(server, "hang", limit_s=0.2) == "error: hang timed out after 0.2 s"
    assert children() <= before


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ({"command": ("no-such-program",)}, EnvError, "cannot be started: FileNotFoundError"),
        ({"command": (sys.executable, "-c", "")}, InfrastructureError, "ended before it was ready"),
        ({"command": SERVER, "tools": ("ad",)}, EnvError, r"has no tools \['ad'\]; it has add,"),
        (
            {"command": (sys.executable, "-c", HANGS), "start_timeout_s": 0.1},
            InfrastructureError,
            "was not ready within 0.1 s",
        ),
    ],
)
async def test_a_server_that_cannot_be_had_is_named(
    spec: dict[str, Any], kind: type[Exception], message: str
) -> None:
    before = children()
    with pytest.raises(kind, match=message):
        async with opened(**spec):
            pass
    assert children() <= before


@pytest.mark.parametrize("command", [SERVER, (sys.executable, "-c", HANGS)])
async def test_an_opening_that_is_cancelled_leaves_nothing(command: tuple[str, ...]) -> None:
    before = children()
    server = McpServer(McpSpec(command=command))
    async with anyio.create_task_group() as group:
        group.start_soon(server.open)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    await server.close()
    await server.close()
    assert children() <= before


async def test_a_shutdown_that_is_under_way_is_not_broken_off(tmp_path: Path) -> None:
    """The handshake has failed and the client waits for the server to go: the cancellation of the
    episode must not leave the process, nor a `close` without end."""
    before, note = children(), tmp_path / "stdin has ended"
    stays = f"import pathlib, time; pathlib.Path({str(note)!r}).touch(); time.sleep(600)"
    program = f"import runpy; runpy.run_path({SERVER[1]!r}, run_name='__main__'); {stays}"
    server = McpServer(McpSpec(command=(sys.executable, "-c", program), tools=("no such tool",)))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(server.open)
            await anyio.to_thread.run_sync(appears, note)
            group.cancel_scope.cancel()
        with anyio.move_on_after(300) as hang:
            await server.close()
        assert not hang.cancelled_caught
        assert children() <= before
    finally:
        for pid in children() - before:
            psutil.Process(pid).kill()


async def test_a_connection_that_does_not_end_is_logged_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, may_end = McpServer._transport, anyio.Event()

    @asynccontextmanager
    async def lasting(server: McpServer) -> AsyncIterator[Any]:
        async with whole(server) as streams:
            yield streams
        with anyio.CancelScope(shield=True):
            await may_end.wait()

    monkeypatch.setattr(McpServer, "_transport", lasting)
    monkeypatch.setattr(mcp, "END_S", 0.1)
    server = await McpServer(McpSpec(command=SERVER)).open()
    with anyio.move_on_after(300) as hang:
        await server.close()
    may_end.set()
    monkeypatch.undo()
    await server.close()
    assert not hang.cancelled_caught
    assert f"MCP server {' '.join(SERVER)} did not end" in caplog.text


async def test_what_breaks_after_the_opening_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = McpServer._transport

    @asynccontextmanager
    async def breaking(server: McpServer) -> AsyncIterator[Any]:
        async with whole(server) as streams:
            yield streams
        raise RuntimeError("the end went wrong")

    monkeypatch.setattr(McpServer, "_transport", breaking)
    async with opened(command=SERVER):
        pass
    assert f"MCP server {' '.join(SERVER)} broke off" in caplog.text
    assert "the end went wrong" in caplog.text


@pytest.mark.parametrize("spec", [{}, {"command": ("x",), "url": "http://x"}])
def test_a_server_is_a_program_or_a_url(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="either a command or a url"):
        McpSpec(**spec)


async def test_an_episode_has_a_server_of_its_own() -> None:
    """What a server remembers of one episode is not there in the next."""
    args = {"mcp": [{"command": list(SERVER), "tools": ["add", "count"]}]}

    async def counted() -> str:
        env = load_env("tools")(**args)
        try:
            await env.reset(seed=0, task={"input": "q", "label": "3"})
            calls = [ToolCall("0", "add", b'{"a": 1}'), ToolCall("1", "count", b"{}")]
            step = await env.step(AssistantTurn("", calls, None, "stop", 0))
            assert step.messages[0].content == "3"
            return step.messages[1].content
        finally:
            await env.close()

    assert [await counted(), await counted()] == ["1", "1"]


async def test_tools_of_one_name_and_bad_descriptions_are_refused(url: str) -> None:
    twice = load_env("tools")(mcp=[{"url": url, "tools": ["add"]}] * 2)
    with pytest.raises(ConfigError, match="two tools are named 'add'"):
        await twice.reset(seed=0, task={"input": "q", "label": "3"})
    await twice.close()
    with pytest.raises(ConfigError, match="`mcp` of --env-args is no list of servers"):
        load_env("tools")(mcp=[{"comand": ["x"]}])


async def test_it_keeps_what_an_env_promises(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have to do with a server; `agentrl env check` tries all, and takes a minute."""
    names = ("the same prompt", "closed at any moment")
    tried = {
        name: keeps for name, keeps in contract.PROMISES.items() if any(n in name for n in names)
    }
    assert len(tried) == len(names)
    monkeypatch.setattr(contract, "PROMISES", tried)
    ground = Subject(
        load_env("tools"), {"mcp": [{"url": url}]}, Task("t", {"input": "q", "label": "3"})
    )
    found = await anyio.to_thread.run_sync(lambda: list(contract.check_contract(ground)))
    assert found == [Finding(promise, None) for promise in tried]
