"""Turns of one version: given up at a push, sampled again, and at last taken as they are."""

import anyio
import msgspec
import pytest

from agentrl.errors import EngineError
from agentrl.serving.whole_turns import WholeTurns
from agentrl.types import Generation

pytestmark = pytest.mark.anyio

WHOLE = Generation([7, 8], [-0.5, -0.5], [3, 3], "stop")
MIXED = msgspec.structs.replace(WHOLE, versions=[3, 4])


class Engine:
    """Prepared replies; None hangs until it is cancelled."""

    def __init__(self, *replies: Generation | Exception | None) -> None:
        self.replies = list(replies)
        self.num_asked = 0
        self.hangs = anyio.Event()
        self.cancelled = 0

    async def sample(self) -> Generation:
        self.num_asked += 1
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            try:
                self.hangs.set()
                await anyio.sleep_forever()
            finally:
                self.hangs = anyio.Event()
                self.cancelled += 1
        assert reply is not None
        return reply


async def test_a_turn_of_one_version_is_taken_at_once() -> None:
    engine = Engine(WHOLE)
    assert await WholeTurns().take(engine.sample) == WHOLE
    assert engine.num_asked == 1


async def test_a_turn_that_survived_a_push_is_asked_for_again() -> None:
    engine = Engine(MIXED, WHOLE)
    taken = await WholeTurns().take(engine.sample)
    assert (taken.versions, taken.num_resamples) == ([3, 3], 1)


async def test_the_third_reply_is_taken_as_it_is() -> None:
    engine = Engine(MIXED, MIXED, MIXED, WHOLE)
    taken = await WholeTurns().take(engine.sample)
    assert (taken.versions, taken.num_resamples) == ([3, 4], 2)
    assert engine.num_asked == 3


async def test_new_weights_cut_a_turn_in_flight_twice_and_then_no_more() -> None:
    engine = Engine(None, None, MIXED)
    turns = WholeTurns()
    taken: list[Generation] = []

    async def play() -> None:
        taken.append(await turns.take(engine.sample))

    async with anyio.create_task_group() as group:
        group.start_soon(play)
        for _ in range(2):
            await engine.hangs.wait()
            turns.new_weights()
            await anyio.wait_all_tasks_blocked()
    assert engine.cancelled == 2
    assert [generation.num_resamples for generation in taken] == [2]


async def test_new_weights_leave_the_last_try_alone() -> None:
    engine = Engine(MIXED, MIXED, None)
    turns = WholeTurns()
    async with anyio.create_task_group() as group:
        group.start_soon(turns.take, engine.sample)
        await engine.hangs.wait()
        turns.new_weights()
        await anyio.wait_all_tasks_blocked()
        assert engine.cancelled == 0
        group.cancel_scope.cancel()
    assert engine.cancelled == 1


async def test_a_cancelled_episode_is_not_asked_for_again() -> None:
    engine = Engine(None, WHOLE)
    turns = WholeTurns()
    async with anyio.create_task_group() as group:
        group.start_soon(turns.take, engine.sample)
        await engine.hangs.wait()
        group.cancel_scope.cancel()
    assert engine.num_asked == 1


async def test_a_failure_is_the_callers_to_see() -> None:
    engine = Engine(MIXED, EngineError("gone"))
    with pytest.raises(EngineError, match="gone"):
        await WholeTurns().take(engine.sample)
