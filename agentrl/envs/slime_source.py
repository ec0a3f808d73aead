"""`--data-source-path`: training tasks from a class in slime's signature.

    class Source:
        def __init__(self, args): ...
        def get_samples(self, num_samples): ...     # a list of groups of samples

A group becomes a task: what its first sample has as prompt, label and metadata, under the keys at
which the environments for rows look. How many episodes it is of, the flags say.
"""

import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio.to_thread

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.slime_stand_in.finder import show
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.envs.travel import arrived
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task
from agentrl.user_code import Kind, load
from agentrl.user_traceback import words_of

__all__ = ["SOURCES", "SlimeSource", "load_source"]

_FLAG = "--data-source-path"
#: Seconds after which one that has not come back is told: it may hold up the run.
SLOW_S = 30.0
_LOG = logging.getLogger(__name__)


def _take(value: object) -> Callable[[Any], Any] | None:
    is_source = isinstance(value, type) and callable(getattr(value, "get_samples", None))
    return value if is_source and not getattr(value, "__abstractmethods__", None) else None  # type: ignore[return-value]


SOURCES: Kind[Callable[[Any], Any]] = Kind(
    group="agentrl.data_sources",
    noun="data source",
    must_be="a class with `get_samples(self, num_samples)` that is made as `Source(args)`",
    write="`class Source:` with `def get_samples(self, num_samples):`",
    take=_take,
    builtin={},
    flag=_FLAG,
    is_function=True,
)


def load_source(place: str) -> Callable[[Any], Any]:
    """The class of `pkg.module.Name` or `path/to/file.py[:Name]`. Raises ConfigError. From now on
    this process has slime's modules that such classes import."""
    show()
    return load(SOURCES, place)


async def _in_thread(function: Callable[..., Any], *given: Any) -> Any:
    """A call that does not come back holds up nobody who gives up waiting for it."""
    return await anyio.to_thread.run_sync(function, *given, abandon_on_cancel=True)


class SlimeSource:
    """A `types.TaskSource` of the samples that a user's class gives, in the order in which it gives
    them. Raises ConfigError for a class that is none."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._place = str(config.data_source_path)
        self._class = load_source(self._place)

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on: what comes before is asked for again, and left out.
        Raises DataError for what the class raises, or gives and is no list of groups, and where
        it gives no group at all."""
        source = await _in_thread(self._made)
        position = 0
        while groups := await _in_thread(self._asked, source, position):
            for group in groups:
                if position >= cursor:
                    yield self._task(group, position)
                position += 1
        if position == 0:
            number = self._config.rollout_batch_size
            raise DataError(
                f"{self._whose}: get_samples({number}) returned an empty list at once, so there is "
                "no task to train on"
            )

    def _made(self) -> Any:
        try:
            return self._class(Args(self._config))
        except Exception as error:
            raise ConfigError(f"{self._whose} cannot be made: {words_of(error)}") from error

    def _asked(self, source: Any, position: int) -> list[Any]:
        number = self._config.rollout_batch_size
        slow = f"{self._whose}: get_samples({number}) has taken more than {SLOW_S:g} s"
        told = threading.Timer(SLOW_S, _LOG.warning, [f"{slow} after {position} groups"])
        told.daemon = True
        told.start()
        try:
            groups = source.get_samples(number)
        except Exception as error:
            raise DataError(
                f"{self._whose}: get_samples({number}) raised {words_of(error)} after {position} "
                "groups"
            ) from error
        finally:
            told.cancel()
        if not isinstance(groups, list):
            raise DataError(
                f"{self._whose}: get_samples({number}) returned {groups!r:.80} after {position} "
                "groups; return a list of groups, each a list of samples; at the end an empty one"
            )
        return groups

    def _task(self, group: Any, position: int) -> Task:
        sample = group[0] if isinstance(group, list) and group else group
        if not isinstance(sample, Sample) and not hasattr(sample, "prompt"):
            raise DataError(
                f"{self._whose}: group {position} is {group!r:.80}; a group is a list of samples"
            )
        if getattr(sample, "multimodal_inputs", None):
            raise DataError(
                f"{self._whose}: group {position} has multimodal_inputs; prompts are text"
            )
        config = self._config
        row = {config.input_key: sample.prompt}
        if (label := getattr(sample, "label", None)) is not None:
            row[config.label_key or "label"] = label
        if metadata := getattr(sample, "metadata", None):
            row["metadata"] = metadata
            if isinstance(metadata, dict) and "tools" in metadata:
                row["tools"] = metadata["tools"]
        task = Task(f"sample:{position}", row)
        try:
            arrived(task)
        except DataError as error:
            raise DataError(f"{self._whose}: {error}") from error
        return task

    @property
    def _whose(self) -> str:
        return f"{_FLAG} {self._place}"
