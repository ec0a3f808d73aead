"""The calls of one turn: which run at once, how many, and what an error does to the others."""

import asyncio
from typing import Any

import anyio
import pytest

from agentrl.errors import EnvError, InfrastructureError
from agentrl.tokens import ToolCall
from agentrl.tools import run_calls, tool
from tests.unit.test_tools_tool import Library

pytestmark = pytest.mark.anyio


class Reader(Library):
    """Notes what begins and ends."""

    def __init__(self) -> None:
        self.story: list[str] = []

    async def note(self, name: str) -> str:
        self.story.append(f"{name} begins")
        await anyio.sleep(0.01)
        self.story.append(f"{name} ends")
        return name

    @tool(parallel=True)
    async def read(self, page: str) -> str:
        """Read a page."""
        if page == "read:torn":
            raise InfrastructureError("the shelf is away")
        if page == "read:mine":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return await self.note(page)

    @tool
    async def write(self, page: str) -> str:
        """Write a page."""
        return await self.note(page)

    @tool(parallel=True, max_concurrency=2, timeout_s=2)
    async def borrow(self, page: str) -> str:
        """Borrow a page: two at a time."""
        self.story.append(f"{page} begins")
        await anyio.sleep(0.8)
        self.story.append(f"{page} ends")
        return page


def calls(*pages: str) -> list[ToolCall]:
    """Each of `TOOL:anything`: a call of that tool with all of it as its page."""
    return [
        ToolCall(str(number), page.partition(":")[0], b'{"page": "%s"}' % page.encode())
        for number, page in enumerate(pages)
    ]


async def test_neighbours_that_may_run_at_once_do_and_all_answers_keep_their_places() -> None:
    reader = Reader()
    wanted = ["read:1", "read:2", "write:3", "write:4", "unknown:5", "read:6"]
    results = await run_calls(reader, calls(*wanted), 5)
    assert [result.is_error for result in results] == [False] * 4 + [True, False]
    assert [result.text for result in results if not result.is_error] == [*wanted[:4], wanted[5]]
    assert reader.story[:2] == ["read:1 begins", "read:2 begins"]
    alone = ["write:3 begins", "write:3 ends", "write:4 begins", "write:4 ends"]
    assert reader.story[4:8] == alone
    assert reader.story[8:] == ["read:6 begins", "read:6 ends"]


async def test_an_error_of_the_tool_ends_those_beside_it_and_keeps_its_class() -> None:
    reader = Reader()
    with pytest.raises(InfrastructureError, match="the shelf is away"):
        await run_calls(reader, calls("read:1", "read:torn"), 5)
    assert reader.story == ["read:1 begins"]


async def test_a_tool_that_cancels_itself_is_an_env_error() -> None:
    with pytest.raises(EnvError, match=r"cancelled the task .*, read \(call 1\)"):
        await run_calls(Reader(), calls("read:1", "read:mine"), 5)


async def test_a_limit_holds_for_all_episodes_and_waiting_is_not_the_tools_time() -> None:
    readers = [Reader(), Reader()]
    found: list[str] = []

    async def play(reader: Reader) -> None:
        results = await run_calls(reader, calls("borrow:1", "borrow:2", "borrow:3"), 5)
        found.extend(result.text for result in results)

    began = anyio.current_time()
    async with anyio.create_task_group() as episodes:
        for reader in readers:
            episodes.start_soon(play, reader)
    assert anyio.current_time() - began > 3 * 0.8 - 0.05
    assert sorted(found) == sorted(2 * ["borrow:1", "borrow:2", "borrow:3"])


def test_a_limit_serves_one_loop_after_the_other() -> None:
    for _ in range(2):
        (result,) = anyio.run(run_calls, Reader(), calls("borrow:1"), 5)
        assert not result.is_error


@pytest.mark.parametrize("limit", [0, 2.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match=f"max_concurrency={limit}; min 1"):

        @tool(max_concurrency=limit)
        async def never() -> None:
            """Never."""


def test_a_limit_of_threads_is_refused_for_one_that_is_left_behind_would_not_count() -> None:
    with pytest.raises(TypeError, match="hold a lock in the tool"):

        @tool(max_concurrency=1, thread=True)
        def never() -> None:
            """Never."""
