"""The turn permits of one worker: the oldest group first, an episode in a tool holds none.

The model of `agentrl.serving.permits`, without a loop.
"""

import heapq
from collections.abc import Callable

from agentrl.sim.timeline import Timeline
from agentrl.types import PermitStats

__all__ = ["Permits", "Ticket"]


class Ticket:
    """A wait for a permit."""

    __slots__ = ("granted",)

    def __init__(self, granted: Callable[[], None]) -> None:
        self.granted: Callable[[], None] | None = granted


class Permits:
    """`total` permits (>= 1); `free_s` is the integral of the free share, in seconds."""

    def __init__(self, total: int, timeline: Timeline) -> None:
        self._total = total
        self._timeline = timeline
        self._queue: list[tuple[int, int, Ticket]] = []
        self._order = 0
        self._queued = 0
        self._in_use = 0
        self._measured = self._reported = timeline.now
        self._reported_free_s = 0.0
        self.free_s = 0.0

    def acquire(self, priority: int, granted: Callable[[], None]) -> Ticket | None:
        """Call `granted` now (and return None) or later (and return the ticket)."""
        if self._in_use < self._total:
            self.measure()
            self._in_use += 1
            granted()
            return None
        ticket = Ticket(granted)
        self._order += 1
        self._queued += 1
        heapq.heappush(self._queue, (priority, self._order, ticket))
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """Leave the queue; the ticket must still be waiting."""
        ticket.granted = None
        self._queued -= 1

    def release(self) -> None:
        """Hand a permit to the first in the queue, or free it."""
        while self._queue:
            granted = heapq.heappop(self._queue)[2].granted
            if granted is not None:
                self._queued -= 1
                granted()
                return
        self.measure()
        self._in_use -= 1

    def stats(self) -> PermitStats:
        """What happened since the last call."""
        self.measure()
        window_s = self._measured - self._reported
        free_share = (self.free_s - self._reported_free_s) / window_s if window_s > 0 else 0.0
        self._reported, self._reported_free_s = self._measured, self.free_s
        return PermitStats(free_share, window_s, self._in_use, self._queued)

    def measure(self) -> None:
        """Bring `free_s` up to now."""
        now = self._timeline.now
        self.free_s += (now - self._measured) * (self._total - self._in_use) / self._total
        self._measured = now
