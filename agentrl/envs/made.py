"""`MadeSource`: tasks that an Env makes from a seed, each by its number alone."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from agentrl.errors import ConfigError
from agentrl.types import Task

__all__ = ["MadeSource"]


class MadeSource(ABC):
    """Subclass it and define `task`. A `types.TaskSource`.

    Args:
        seed: fixes every task.
        num_tasks: how many tasks the source has; None for no end.
    """

    def __init__(self, seed: int, num_tasks: int | None = None) -> None:
        if num_tasks is not None and num_tasks < 1:
            raise ConfigError(f"a task source needs at least 1 task, not {num_tasks}")
        self.seed = seed
        self._num_tasks = num_tasks

    @abstractmethod
    def task(self, index: int) -> Task:
        """Task number `index`, whatever came before it."""

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from number `cursor` on."""
        while self._num_tasks is None or cursor < self._num_tasks:
            yield self.task(cursor)
            cursor += 1
