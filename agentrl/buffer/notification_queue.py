"""Events on their way to the driver, in order; each is kept until a connection has taken it.

The driver may be away longer than there is room: then the oldest go, counted, and both ends of the
gap are logged. What a driver must not miss it asks for again, or finds in the ledger.
"""

import logging
from collections import deque
from collections.abc import Callable

from agentrl.wire.messages import Event

__all__ = ["NotificationQueue"]

logger = logging.getLogger(__name__)

#: Events kept for a driver that is away.
MAX_EVENTS = 4096


class NotificationQueue:
    """A bounded queue. `dropped` counts the events of this process that no driver got."""

    def __init__(self, limit: int = MAX_EVENTS) -> None:
        self._limit = limit
        self._waiting: deque[Event] = deque()
        self._reported = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, event: Event) -> None:
        """Queue an event; the oldest gives way to it when there is no room."""
        if len(self._waiting) == self._limit:
            self._waiting.popleft()
            if self.dropped == self._reported:
                logger.warning(
                    "%s events wait for the driver: the oldest are dropped until it takes some",
                    self._limit,
                )
            self.dropped += 1
        self._waiting.append(event)

    def hand_over(self, send: Callable[[Event], bool]) -> None:
        """Offer each event to `send`, in order; one that is not taken stays, with all after it."""
        while self._waiting and send(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting and self.dropped > self._reported:
            logger.warning("the driver is back and has missed %s events", self.dropped)
            self._reported = self.dropped
