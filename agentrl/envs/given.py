"""Tasks that an Env gives as any iterable: a list, a tuple, a generator, an object that can be gone
through.

A source has to begin anywhere: what can be gone through once only is asked for again, and has to
come in the same order. Of a run with a number of iterations the tasks are repeated, as rows of a
file are. A row alone is a task named by its place.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio.lowlevel

from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import Task
from agentrl.user_traceback import words_of

__all__ = ["GivenSource", "listed"]

#: Tasks that are passed over before others may do something.
_AT_ONCE = 1000
#: An evaluation set of more never ends.
_MOST = 1_000_000


class GivenSource:
    """A `types.TaskSource` of the tasks in `found`; `again` gives them once more. `name` is what
    gave them, for errors.

    Raises ConfigError for what cannot be gone through, and holds or gives no task.
    """

    def __init__(
        self,
        found: object,
        again: Callable[[], object],
        *,
        name: str,
        is_repeated: bool = False,
    ) -> None:
        self._found: Iterable[object] | None = _iterable(found, name)
        self._again = again
        self._name = name
        self._is_repeated = is_repeated

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on. Raises ConfigError when there are none, or what gives
        them raises."""
        position = 0
        while True:
            begun = position
            for index, item in enumerate(_guarded(self._all(), self._name)):
                if position >= cursor:
                    yield _task(item, index, self._name)
                elif position % _AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                position += 1
            if position == begun:
                raise ConfigError(f"{self._name} gave no tasks")
            if not self._is_repeated:
                return

    def _all(self) -> Iterable[object]:
        """All tasks from the first one on."""
        found, self._found = self._found, None
        if found is None:
            found = _iterable(self._again(), self._name)
        if not isinstance(found, Iterator):
            self._found = found  # it can be gone through once more
        return found


def listed(found: object, name: str) -> list[Task]:
    """The tasks of an evaluation set. Raises ConfigError, also when there is no end of them."""
    items = list(itertools.islice(_guarded(_iterable(found, name), name), _MOST + 1))
    if len(items) > _MOST:
        raise ConfigError(f"{name} gave more than {_MOST} tasks; an evaluation set has an end")
    return [_task(item, index, name) for index, item in enumerate(items)]


def _iterable(found: object, name: str) -> Iterable[object]:
    if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping):
        return found
    raise ConfigError(
        f"{name} returned {found!r:.80}; return tasks, as a list or a generator of Task(id, row), "
        "or a source with `async def tasks(self, cursor=0)`"
    )


def _guarded(items: Iterable[object], name: str) -> Iterator[object]:
    """`items`; an error of theirs is a ConfigError that says whose."""
    try:
        yield from items
    except AgentRLError:
        raise
    except Exception as error:
        raise ConfigError(f"{name} raised {words_of(error)}") from error


def _task(item: Any, index: int, name: str) -> Task:
    if isinstance(item, Task) and isinstance(item.row, dict):
        return item
    if isinstance(item, dict):
        return Task(str(index), item)
    raise ConfigError(f"{name} gave {item!r:.80} as task {index}; give Task(id, row), or the row")
