"""Starvation: whether slow groups get their share of the training.

    starvation = (trained / generated tokens) of the slowest tenth, over the same ratio of all

1: the slow ones are trained like the others; 0: nothing of them is. Generated are the tokens of
`done` episodes; trained are those that were leased and young enough. A group that became stale or
failed was generated and not trained; one that was filtered, or cancelled, says nothing. A group is
as slow as its longest episode. In memory only: a restarted buffer begins anew.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

__all__ = ["Starvation"]

#: Iterations that are looked back on, and groups that are too few to tell.
WINDOW = 10
LEAST = 10


class _Group(msgspec.Struct, frozen=True):
    wall_s: float
    generated: int
    trained: int


class Starvation:
    """The last groups; `rollout_batch_size` is that of the run."""

    def __init__(self, rollout_batch_size: int) -> None:
        self._groups: deque[_Group] = deque(maxlen=max(LEAST, WINDOW * rollout_batch_size))

    def account(self, wall_s: float, generated: int, trained: int) -> None:
        """A group has been leased, or will never be. Seconds; tokens."""
        if generated:
            self._groups.append(_Group(wall_s, generated, trained))

    def ratio(self) -> float | None:
        """The starvation of the last groups, or None while it cannot be told."""
        if len(self._groups) < LEAST:
            return None
        by_time = sorted(self._groups, key=lambda group: group.wall_s, reverse=True)
        whole = _share(by_time)
        return _share(by_time[: len(by_time) // 10]) / whole if whole else None


def _share(groups: Iterable[_Group]) -> float:
    groups = list(groups)
    return sum(group.trained for group in groups) / sum(group.generated for group in groups)
