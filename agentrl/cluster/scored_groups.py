"""Scored groups that wait for the function of `--rollout-all-samples-process-path`. Pure.

    scored -> waiting -> ready -> taken      ready: a lease was made after it was scored
    waiting, ready -> dropped                no room: the oldest first, and counted

A batch is what one call of the function is given: all groups of a lease that are still here.
"""

from collections import deque

__all__ = ["MAX_WAITING_BYTES", "ScoredGroups"]

#: Most bytes of encoded groups that wait. Those that were taken are no longer counted.
MAX_WAITING_BYTES = 128 * 1024**2


class ScoredGroups:
    """Encoded groups, of `max_bytes` at most. `num_dropped` counts those that had to make room."""

    def __init__(self, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._waiting: deque[tuple[int, deque[bytes]]] = deque()
        self._newest: deque[bytes] = deque()
        self.num_dropped = 0

    @property
    def num_groups(self) -> int:
        """Those that were not taken yet."""
        return len(self._newest) + sum(len(groups) for _, groups in self._waiting)

    def add(self, group: bytes) -> None:
        """A group was scored."""
        self._newest.append(group)
        self._num_bytes += len(group)
        while self._num_bytes > self._max_bytes:
            self._drop_oldest()

    def leased(self, number: int) -> None:
        """Lease `number` was made: what was scored until now may be taken. Of a lease before which
        nothing was scored there is nothing to take."""
        if self._newest:
            self._waiting.append((number, self._newest))
            self._newest = deque()

    def take(self) -> tuple[int, list[bytes]] | None:
        """The oldest batch, with the number of its lease; None: no batch is ready."""
        if not self._waiting:
            return None
        number, groups = self._waiting.popleft()
        self._num_bytes -= sum(map(len, groups))
        return number, list(groups)

    def _drop_oldest(self) -> None:
        groups = self._waiting[0][1] if self._waiting else self._newest
        self._num_bytes -= len(groups.popleft())
        self.num_dropped += 1
        if self._waiting and not groups:
            self._waiting.popleft()
