"""Turn permits without a clock or a loop: how many turns may be in flight, and whose is next.

A permit stands for engine capacity. The waiting turn with the lowest priority number goes first,
then the one that waited longest; so the oldest group finishes first. A free permit never coexists
with a waiting turn, hence the free share measured here is the share that was free while no turn
waited.

    WAITING -> HELD -> RELEASED        WAITING -> GIVEN UP
"""

import heapq
from collections.abc import Callable

from agentrl.types import PermitStats

__all__ = ["PermitQueue", "Ticket"]


class Ticket:
    """A place in the queue; `granted` is None once the wait is given up."""

    __slots__ = ("granted",)

    def __init__(self, granted: Callable[[], None]) -> None:
        self.granted: Callable[[], None] | None = granted


class PermitQueue:
    """`total` permits (>= 1). `now` is in seconds, on one clock of the caller's; `free_s` is the
    integral of the free share up to the last measurement."""

    def __init__(self, total: int, now: float) -> None:
        if total < 1:
            raise ValueError(f"turns need at least one permit, not {total}")
        self._total = total
        self._in_use = 0
        self._queue: list[tuple[int, int, Ticket]] = []
        self._queued = 0
        self._order = 0
        self._measured = self._reported = now
        self._reported_free_s = 0.0
        self.free_s = 0.0

    def acquire(self, priority: int, granted: Callable[[], None], now: float) -> Ticket | None:
        """Call `granted` at once (and return None) or when it is this turn's time."""
        if self._in_use < self._total:
            self.measure(now)
            self._in_use += 1
            granted()
            return None
        ticket = Ticket(granted)
        self._order += 1
        self._queued += 1
        heapq.heappush(self._queue, (priority, self._order, ticket))
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """Leave the queue; the ticket must still wait."""
        ticket.granted = None
        self._queued -= 1

    def release(self, now: float) -> None:
        """Hand a permit to the first turn in the queue, or free it."""
        while self._queue:
            granted = heapq.heappop(self._queue)[2].granted
            if granted is not None:
                self._queued -= 1
                granted()
                return
        self.measure(now)
        self._in_use -= 1

    def stats(self, now: float) -> PermitStats:
        """What happened since the last call."""
        self.measure(now)
        window_s = now - self._reported
        free_share = (self.free_s - self._reported_free_s) / window_s if window_s > 0 else 0.0
        self._reported, self._reported_free_s = now, self.free_s
        return PermitStats(free_share, window_s, self._in_use, self._queued)

    def measure(self, now: float) -> None:
        """Bring `free_s` up to now."""
        self.free_s += (now - self._measured) * (self._total - self._in_use) / self._total
        self._measured = now
