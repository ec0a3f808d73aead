"""From tasks to minted groups: those offered by the source, and those whose group was given up.

The driver is given one credit at a time and answers it with one `Tasks`. Offered tasks wait in
memory only: the durable cursor (that of the last minted group) says where to ask again. A source
position is one task, so a batch that ends at `cursor` begins at `cursor - len(tasks)`; what is
known of it already is skipped, and a batch that would leave a gap is ignored and asked for again.

A task whose group became stale, or surplus before it was scored, is minted again before any other,
REPEATS times at the most; then it is given up. Which tasks wait for that follows from the groups in
the ledger; the group of the lowest mint number goes first.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

from agentrl.buffer import groups
from agentrl.buffer.rows import GroupRow
from agentrl.buffer.state import State
from agentrl.types import Fate, Task
from agentrl.wire.messages import TaskCredit, Tasks

__all__ = ["Minter"]

#: Most tasks asked for in one credit; a message of more would be large for nothing.
MAX_CREDIT = 4096


class Minter:
    """Tasks that are offered but not minted, and the credit that is out; `ended` are the stale
    and surplus groups whose task no later one has. `repeated` and `given_up` count tasks since this
    process began."""

    def __init__(self, state: State, ended: Iterable[GroupRow] = ()) -> None:
        self._state = state
        self._offered: deque[tuple[Task, int]] = deque()
        partial = state.settings.partial_rollout
        self._again = [
            row for row in ended if groups.may_repeat(row) and (partial or row.fate is Fate.STALE)
        ]
        self.repeated = self.given_up = 0
        self._credit: TaskCredit | None = None
        self._end_seen = False

    @property
    def cursor(self) -> int:
        """The source position after the last task that is known here."""
        return self._offered[-1][1] if self._offered else self._state.cursor

    @property
    def exhausted(self) -> bool:
        """The source has ended, all its tasks are minted, and none waits to be minted again."""
        return self._end_seen and not self._offered and not self._again

    @property
    def num_waiting(self) -> int:
        """Tasks that could be minted if there were room."""
        return len(self._again) + len(self._offered)

    @property
    def waiting_again(self) -> tuple[int, ...]:
        """The groups whose tasks wait to be minted again."""
        return tuple(row.mint for row in self._again)

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

    def again(self, row: GroupRow) -> None:
        """This group is given up: its task is minted again, or given up as well."""
        if row.repeat < groups.REPEATS:
            insort(self._again, row, key=lambda row: row.mint)
        else:
            self.given_up += 1

    def mint(self, headroom: int) -> Iterator[int]:
        """Mint up to `headroom` groups from the tasks that wait; yields their numbers."""
        for _ in range(min(headroom, len(self._again))):
            row = self._again.pop(0)
            self.repeated += 1
            headroom -= 1
            yield groups.mint(self._state, row.task, row.cursor, row.repeat + 1)
        for _ in range(min(headroom, len(self._offered))):
            task, cursor = self._offered.popleft()
            yield groups.mint(self._state, task, cursor)

    def credit(self, headroom: int) -> TaskCredit | None:
        """The credit to give now, if any: only what could be minted at once."""
        wanted = min(headroom - self.num_waiting, MAX_CREDIT)
        if wanted <= 0 or self._end_seen or self._credit is not None:
            return None
        self._credit = TaskCredit(wanted, self.cursor)
        return self._credit

    def forget_credit(self) -> None:
        """The driver is another one, or has reconnected: what it was told may be lost."""
        self._credit = None
