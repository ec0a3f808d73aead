"""A rehearsal that takes long: what waits in a thread is left alone, what holds the loop named."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import anyio
import anyio.to_thread
import pytest

from agentrl.envs.check.dry_reset import dry_reset, first_task
from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.errors import ConfigError
from agentrl.types import Task

pytestmark = pytest.mark.slow

TASK = Task("rows:1", {})
LIMIT_S = 0.5


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Is not set before the test ends."""
    event = threading.Event()
    yield event
    event.set()


class Slow(Env):
    """Waits where it is told to."""

    wait: Callable[[], object]
    where = "reset"

    async def reset(self, *, seed: int, task: dict[str, object]) -> list[Message]:
        await self.maybe("reset")
        return [Message.user("x")]

    async def close(self) -> None:
        await self.maybe("close")

    async def maybe(self, where: str) -> None:
        if where == self.where:
            await anyio.to_thread.run_sync(type(self).wait)


@pytest.mark.parametrize("where", ["reset", "close"])
def test_what_cannot_be_cancelled_is_left_behind_with_a_note(
    where: str, never: threading.Event
) -> None:
    """`anyio.to_thread.run_sync` is what the refusal of a blocking Env advises."""

    class Waiting(Slow):
        wait = staticmethod(never.wait)

    env = Waiting()
    env.where = where
    note = dry_reset(env, TASK, seed=0, limit_s=LIMIT_S)
    assert note is not None
    assert note.endswith(f"Waiting.{where} took more than 0.5 s: its prompt is unchecked")


def test_a_thread_of_the_loop_is_not_waited_for(never: threading.Event) -> None:
    class Waiting(Slow):
        async def maybe(self, where: str) -> None:
            if where == "reset":
                await asyncio.to_thread(never.wait)

    assert dry_reset(Waiting(), TASK, seed=0, limit_s=LIMIT_S) is not None


def test_a_source_that_cannot_be_cancelled_is_no_task_in_time(never: threading.Event) -> None:
    class Source:
        async def tasks(self, cursor: int = 0):  # type: ignore[no-untyped-def]
            await anyio.to_thread.run_sync(never.wait)
            yield TASK

    assert first_task(Source(), limit_s=LIMIT_S) is None


def test_one_that_cancellation_does_not_end_is_left_behind_too(never: threading.Event) -> None:
    class Stubborn(Slow):
        async def maybe(self, where: str) -> None:
            while not never.is_set() and where == "reset":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue

    class Once(Slow):
        async def maybe(self, where: str) -> None:
            if where == "reset":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(60)

    assert dry_reset(Once(), TASK, seed=0, limit_s=LIMIT_S) is not None
    assert dry_reset(Stubborn(), TASK, seed=0, limit_s=LIMIT_S) is not None


def test_a_loop_that_is_held_after_it_turned_is_named_with_the_line(never: threading.Event) -> None:
    class Held(Slow):
        async def maybe(self, where: str) -> None:
            await asyncio.sleep(0)
            never.wait()

    with pytest.raises(
        ConfigError, match=r"Held\.reset held the event loop for more than 0\.5 s \("
    ):
        dry_reset(Held(), TASK, seed=0, limit_s=LIMIT_S)


def test_reset_and_close_are_one_task(never: threading.Event) -> None:
    """An Env may open a task group in one and close it in the other."""

    class Grouped(Slow):
        async def maybe(self, where: str) -> None:
            if where == "reset":
                self.task = asyncio.current_task()
            assert self.task is asyncio.current_task()

    assert dry_reset(Grouped(), TASK, seed=0) is None
