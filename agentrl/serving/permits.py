"""Turn permits for the tasks of one event loop: `PermitQueue` with a clock, and with waits that may
be cancelled at any moment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from agentrl.clock import Clock
from agentrl.serving.permit_queue import PermitQueue
from agentrl.types import PermitStats

__all__ = ["Permits"]


class Permits:
    """`num_permits` permits (>= 1), for the turns of one event loop."""

    def __init__(self, num_permits: int, clock: Clock) -> None:
        self._clock = clock
        self._queue = PermitQueue(num_permits, clock.now())

    @asynccontextmanager
    async def hold(self, priority: int) -> AsyncIterator[None]:
        """Hold one permit. Waits its turn; a cancelled wait takes no permit."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._queue.release(self._clock.now())

    def stats(self) -> PermitStats:
        """What happened since the last call, and start a new window."""
        return self._queue.stats(self._clock.now())

    async def _acquire(self, priority: int) -> None:
        granted = anyio.Event()
        ticket = self._queue.acquire(priority, granted.set, self._clock.now())
        if ticket is None:
            return
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():  # granted and cancelled in the same moment
                self._queue.release(self._clock.now())
            else:
                self._queue.give_up(ticket)
            raise
