"""Which episode takes its workers down: found among all that were played beside it. Pure.

    held at a loss    suspected, and played again as before     most losses never come back
    at a second one   at most the square root of so many at once on a worker
    at a third one    one at a time on a worker
    the only suspect on a worker that is lost: it pays for every loss that it was held at; not yet
                      at a second one, for what was new beside it may have done it

So one bad episode costs four workers, however many were beside it, and nobody else pays. Whoever is
not suspected may be played beside. An episode that ends without its worker is no suspect any more,
and nobody is once one has been found. In memory only: a restarted buffer begins anew, which costs
workers and charges nobody.
"""

import math
from collections.abc import Collection

from agentrl.types import EpisodeId

__all__ = ["Suspects"]

#: Losses after which suspects are played one at a time.
ALONE = 3

_Key = tuple[str, int]


class Suspects:
    """Episodes by group and index: losses that each was held at, and how many suspects may be
    played at once on a worker of its own (0: any number)."""

    def __init__(self) -> None:
        self._losses: dict[_Key, int] = {}
        self._most: dict[_Key, int] = {}

    def __contains__(self, id: EpisodeId) -> bool:
        return _key(id) in self._losses

    def any(self, held: Collection[EpisodeId]) -> bool:
        """Whether one of these is suspected."""
        return any(id in self for id in held)

    def lost(self, held: Collection[EpisodeId]) -> dict[EpisodeId, int]:
        """A worker was lost with all that it held; returns who pays for it, and for how many
        losses."""
        suspects = [id for id in held if id in self]
        found = [id for id in suspects if len(suspects) == 1 and self._losses[_key(id)] != 1]
        found = list(held) if len(held) == 1 else found
        for id in held:
            self._losses[_key(id)] = losses = self._losses.get(_key(id), 0) + 1
            if losses > 1:
                self._most[_key(id)] = 1 if losses >= ALONE else math.isqrt(len(suspects))
        return {id: self._losses[_key(id)] for id in found}

    def paid(self, id: EpisodeId) -> None:
        """This one was charged: from now on it pays for each loss as it comes."""
        self._losses[_key(id)] = 0

    def cleared(self, id: EpisodeId) -> None:
        """An attempt has ended, and its worker has not."""
        self._losses.pop(_key(id), None)
        self._most.pop(_key(id), None)

    def forget(self) -> None:
        """The one that they were looked for is found."""
        self._losses.clear()
        self._most.clear()

    def may_join(self, id: EpisodeId, held: Collection[EpisodeId]) -> bool:
        """Whether an episode may be played on a worker that holds these."""
        if id not in self:
            return True
        beside = [other for other in held if other in self]
        bounds = [most for one in (id, *beside) if (most := self._most.get(_key(one), 0))]
        return len(beside) < min(bounds, default=len(beside) + 1)


def _key(id: EpisodeId) -> _Key:
    return id.group, id.index
