"""From offered tasks to minted groups: the source's cursor, credit, and exhaustion.

The driver is given one credit at a time and answers it with one `Tasks`. Offered tasks wait in
memory only: the durable cursor (that of the last minted group) says where to ask again. A source
position is one task, so a batch that ends at `cursor` begins at `cursor - len(tasks)`; what is
known of it already is skipped, and a batch that would leave a gap is ignored and asked for again.
"""

from collections import deque
from collections.abc import Iterator

from agentrl.buffer import groups
from agentrl.buffer.state import State
from agentrl.types import Task
from agentrl.wire.messages import TaskCredit, Tasks

__all__ = ["Minter"]

#: Most tasks asked for in one credit; a message of more would be large for nothing.
MAX_CREDIT = 4096


class Minter:
    """Tasks that are offered but not minted, and the credit that is out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._offered: deque[tuple[Task, int]] = deque()
        self._credit: TaskCredit | None = None
        self._end_seen = False

    @property
    def cursor(self) -> int:
        """The source position after the last task that is known here."""
        return self._offered[-1][1] if self._offered else self._state.cursor

    @property
    def exhausted(self) -> bool:
        """The source has ended and all its tasks are minted."""
        return self._end_seen and not self._offered

    def offer(self, message: Tasks) -> None:
        """Take the driver's tasks, without those that are known."""
        first = message.cursor - len(message.tasks)
        if first > self.cursor:
            self._credit = None
            return
        known = self.cursor
        for position, task in enumerate(message.tasks, start=first + 1):
            if position > known:
                self._offered.append((task, position))
        if message.cursor < known:
            return
        self._end_seen = self._end_seen or message.exhausted
        if message.exhausted or message.cursor > known:
            self._credit = None

    def mint(self, headroom: int) -> Iterator[int]:
        """Mint up to `headroom` groups from the offered tasks; yields their numbers."""
        for _ in range(min(headroom, len(self._offered))):
            task, cursor = self._offered.popleft()
            yield groups.mint(self._state, task, cursor)

    def credit(self, headroom: int) -> TaskCredit | None:
        """The credit to give now, if any: only what could be minted at once."""
        wanted = min(headroom - len(self._offered), MAX_CREDIT)
        if wanted <= 0 or self._end_seen or self._credit is not None:
            return None
        self._credit = TaskCredit(wanted, self.cursor)
        return self._credit

    def forget_credit(self) -> None:
        """The driver is another one, or has reconnected: what it was told may be lost."""
        self._credit = None
