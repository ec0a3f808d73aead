"""Turn permits: how many turns may be in flight, and whose is next.

A permit stands for engine capacity. The waiting turn with the lowest priority number goes first,
then the one that waited longest; so the oldest group finishes first. A free permit never coexists
with a waiting turn, hence the free share measured here is the share that was free while no turn
waited.

    WAITING -> HELD -> RELEASED        WAITING -> CANCELLED
"""

import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from agentrl.clock import Clock
from agentrl.types import PermitStats

__all__ = ["Permits"]


class _Waiter:
    """A turn in the queue. `granted` is set when a permit has been handed to it."""

    def __init__(self) -> None:
        self.granted = anyio.Event()
        self.cancelled = False


class Permits:
    """`num_permits` permits (>= 1), for the turns of one event loop."""

    def __init__(self, num_permits: int, clock: Clock) -> None:
        if num_permits < 1:
            raise ValueError(f"turns need at least one permit, not {num_permits}")
        self._total = num_permits
        self._in_use = 0
        self._queue: list[tuple[int, int, _Waiter]] = []
        self._queued = 0
        self._order = itertools.count()
        self._clock = clock
        self._window_start = self._measured = clock.now()
        self._free_seconds = 0.0

    @asynccontextmanager
    async def hold(self, priority: int) -> AsyncIterator[None]:
        """Hold one permit. Waits its turn; a cancelled wait takes no permit."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    def stats(self) -> PermitStats:
        """What happened since the last call, and start a new window."""
        self._measure()
        window_s = self._measured - self._window_start
        free_share = self._free_seconds / window_s if window_s > 0 else 0.0
        self._window_start, self._free_seconds = self._measured, 0.0
        return PermitStats(free_share, window_s, self._in_use, self._queued)

    async def _acquire(self, priority: int) -> None:
        if self._in_use < self._total:
            self._measure()
            self._in_use += 1
            return
        waiter = _Waiter()
        heapq.heappush(self._queue, (priority, next(self._order), waiter))
        self._queued += 1
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self._release()  # granted and cancelled in the same moment
            else:
                waiter.cancelled = True
                self._queued -= 1
            raise

    def _release(self) -> None:
        """Hand the permit to the next waiting turn, or free it."""
        while self._queue:
            waiter = heapq.heappop(self._queue)[2]
            if not waiter.cancelled:
                self._queued -= 1
                waiter.granted.set()
                return
        self._measure()
        self._in_use -= 1

    def _measure(self) -> None:
        """Account for the time since the number of free permits last changed."""
        now = self._clock.now()
        free_share = (self._total - self._in_use) / self._total
        self._free_seconds += free_share * (now - self._measured)
        self._measured = now
