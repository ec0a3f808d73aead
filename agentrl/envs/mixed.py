"""`MixedSource`: the tasks of a mixture, in an order that follows from its weights alone."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import anyio.lowlevel
import msgspec

from agentrl.config.mixture import MixPart, turns
from agentrl.types import Task, TaskSource

__all__ = ["MixedSource"]

#: Turns that are counted in one pass of the loop.
_AT_ONCE = 10_000


class MixedSource:
    """A `types.TaskSource`: each task is the next one of the part whose turn it is, and says which
    part that is. Parts that have the same source share its tasks: each gets the next one.

    It ends with the first part that has no task when it is its turn.
    """

    def __init__(
        self, parts: Sequence[MixPart], sources: Sequence[TaskSource], tasks_per_iteration: int
    ) -> None:
        self._parts = parts
        self._sources = sources
        self._tasks_per_iteration = tasks_per_iteration

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on, counted over all parts. Raises what a source raises."""
        order = turns([part.weight for part in self._parts], self._tasks_per_iteration)
        taken: Counter[int] = Counter()
        while (left := cursor - taken.total()) > 0:
            taken.update(id(self._sources[i]) for i in islice(order, min(left, _AT_ONCE)))
            await anyio.lowlevel.checkpoint()
        opened: dict[int, AsyncIterator[Task]] = {}
        for index in order:
            source = self._sources[index]
            if id(source) not in opened:
                opened[id(source)] = source.tasks(taken[id(source)])
            task = await anext(opened[id(source)], None)
            if task is None:
                return
            yield msgspec.structs.replace(task, part=self._parts[index].name)
