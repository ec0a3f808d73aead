"""Permits: whose turn is next, what a cancelled wait leaves behind, and the free share."""

import asyncio

import anyio
import anyio.lowlevel
import pytest

from agentrl.serving.permits import Permits
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_the_lowest_priority_goes_first_and_then_the_longest_wait() -> None:
    permits = Permits(1, ManualClock())
    order: list[str] = []

    async def turn(name: str, priority: int) -> None:
        async with permits.hold(priority):
            order.append(name)

    async with anyio.create_task_group() as group, permits.hold(0):
        for name, priority in (("young", 9), ("old", 1), ("middle", 5), ("old, later", 1)):
            group.start_soon(turn, name, priority)
            await anyio.wait_all_tasks_blocked()
        assert permits.stats().queued == 4
    assert order == ["old", "old, later", "middle", "young"]
    assert permits.stats().in_use == 0


async def test_no_more_turns_run_at_once_than_there_are_permits() -> None:
    permits = Permits(3, ManualClock())
    running, most = 0, 0

    async def turn(priority: int) -> None:
        nonlocal running, most
        async with permits.hold(priority):
            running += 1
            most = max(most, running)
            await anyio.lowlevel.checkpoint()
            running -= 1

    async with anyio.create_task_group() as group:
        for priority in range(20):
            group.start_soon(turn, priority)
    assert most == 3


async def test_a_cancelled_wait_takes_no_permit_and_blocks_nobody() -> None:
    permits = Permits(1, ManualClock())
    reached = anyio.Event()

    async def second() -> None:
        async with permits.hold(2):
            reached.set()

    async with anyio.create_task_group() as group, permits.hold(0):
        with anyio.CancelScope() as scope:
            group.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            async with permits.hold(1):
                pytest.fail("the wait was cancelled")
        assert permits.stats().queued == 1
    assert reached.is_set()
    assert permits.stats().in_use == 0


async def test_a_permit_granted_to_a_wait_that_is_cancelled_at_once_is_passed_on() -> None:
    permits = Permits(1, ManualClock())

    async def doomed() -> None:
        async with permits.hold(1):
            pytest.fail("the wait was cancelled")

    # A native task: anyio's own scopes deliver a cancellation only to a task that still waits.
    async with permits.hold(0):
        task = asyncio.create_task(doomed())
        await anyio.wait_all_tasks_blocked()
    task.cancel()  # the permit has just been handed over, and the task has not run since
    with pytest.raises(asyncio.CancelledError):
        await task
    with anyio.fail_after(300):
        async with permits.hold(0):
            assert permits.stats().in_use == 1


async def test_the_free_share_is_averaged_over_time_and_starts_anew() -> None:
    clock = ManualClock()
    permits = Permits(4, clock)
    clock.advance(10)  # 4 of 4 free
    async with permits.hold(0):
        clock.advance(10)  # 3 of 4 free
        stats = permits.stats()
        assert stats.free_share == pytest.approx((10 + 7.5) / 20)
        assert stats.window_s == 20
        assert stats.in_use == 1
        clock.advance(4)
    clock.advance(4)
    assert permits.stats().free_share == pytest.approx((3 + 4) / 8)
    assert permits.stats().window_s == 0


async def test_nothing_is_free_while_a_turn_waits() -> None:
    clock = ManualClock()
    permits = Permits(1, clock)

    async def turn() -> None:
        async with permits.hold(1):
            pass

    async with anyio.create_task_group() as group, permits.hold(0):
        group.start_soon(turn)
        await anyio.wait_all_tasks_blocked()
        clock.advance(5)
        assert permits.stats().free_share == 0


def test_a_pool_without_permits_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one permit"):
        Permits(0, ManualClock())
