"""`--data-source-path`: training tasks from a class in slime's signature.

    class Source:
        def __init__(self, args): ...
        def get_samples(self, num_samples): ...     # a list of groups of samples

A group becomes a task: what its first sample has as prompt, label and metadata, under the keys at
which the environments for rows look. How many episodes it is of, the flags say. Where a run that
goes on begins to ask, `PlacedSource` says.
"""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.envs.slime_place import PlacedSource, keeps_place
from agentrl.envs.slime_stand_in.data_source import RolloutDataSourceWithBuffer
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.envs.source_journal import SourceJournal
from agentrl.envs.source_thread import SourceThread
from agentrl.envs.travel import arrived
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task
from agentrl.user_code import Kind, load

__all__ = ["SOURCES", "SlimeSource", "require_buffer"]

_FLAG = "--data-source-path"


#: What a sample may have in slime, and not here.
_REFUSED = {
    "multimodal_inputs": "prompts are text",
    "custom_rm_path": "the function of --custom-rm-path scores all: have it look at "
    "sample.metadata and call the right one",
    "generate_function_path": "the function of --custom-generate-function-path plays all: have it "
    "look at sample.metadata and call the right one",
}


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
    is_slimes=True,
)


def require_buffer(config: RunConfig) -> None:
    """Raise ConfigError where a function of --buffer-filter-path has nothing to choose from: a run
    without a rollout function, and a class that keeps no groups which were given back."""
    if config.rollout_function_path is not None or config.data_source_path is None:
        return
    source: object = load(SOURCES, config.data_source_path)
    if not isinstance(source, type) or not issubclass(source, RolloutDataSourceWithBuffer):
        raise ConfigError(
            f"--buffer-filter-path {config.buffer_filter_path}: nothing calls it, because "
            f"{_FLAG} {config.data_source_path} keeps no groups that were given back; have the "
            "class inherit from slime.rollout.data_source.RolloutDataSourceWithBuffer, or leave "
            "the filter out"
        )


class SlimeSource:
    """A `types.TaskSource` of the samples that a user's class gives, in the order in which it gives
    them. `folder`: that of a run, where it finds its place again. Raises ConfigError for a class
    that is none."""

    def __init__(self, config: RunConfig, folder: Path | None = None) -> None:
        self._config = config
        self._place = str(config.data_source_path)
        self._class = load(SOURCES, self._place)
        self._journal = None if folder is None else SourceJournal(folder)
        self._placed: PlacedSource | None = None
        self._thread = SourceThread("data-source")

    @property
    def keeps_place(self) -> bool:
        """Whether the class saves and loads where it stands: what it gives is gone from it, and
        nobody asks it to try it."""
        return keeps_place(self._class)

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from position `cursor` on: first those that the run was given before, then what the
        class gives. Raises DataError for what the class raises, or gives and is no list of groups,
        where it gives no group at all, where a call of it does not come back in its time, and where
        it cannot be told where it stands."""
        source = await self._thread.run(self._opened)
        for task in await self._thread.run(partial(self._given, cursor)):
            yield task
        position = source.num_groups
        if position < cursor and self._journal is not None and self.keeps_place:
            raise DataError(
                f"{self._whose}: the run has begun {cursor} groups, and {self._journal.folder} "
                f"knows of {position}: where the class stands cannot be told. Bring the folder "
                "back, or start a new run (--load takes the weights along)"
            )
        while rows := await self._thread.run(source.next):
            for row in rows:
                if position >= cursor:
                    yield _task(row, position)
                position += 1
        if position == 0:
            number = self._config.rollout_batch_size
            raise DataError(
                f"{self._whose}: get_samples({number}) returned an empty list at once, so there is "
                "no task to train on"
            )

    def _opened(self) -> PlacedSource:
        """The one of this process; without a run a new one each time."""
        if self._placed is None or self._journal is None:
            given = (self._whose, self._class, self._config, self._journal, self._rows)
            self._placed = PlacedSource(*given, self._thread.give_up)
        return self._placed

    def _given(self, cursor: int) -> list[Task]:
        """What the run was given before, from position `cursor` on."""
        rows = (row for asked in self._journal or () for row in asked.rows)
        return [_task(row, n) for n, row in enumerate(rows) if n >= cursor]

    def _rows(self, groups: list[Any], position: int) -> list[dict[str, Any]]:
        return [self._row(group, position + i) for i, group in enumerate(groups)]

    def _row(self, group: Any, position: int) -> dict[str, Any]:
        sample = group[0] if isinstance(group, list) and group else group
        if not isinstance(sample, Sample) and not hasattr(sample, "prompt"):
            raise DataError(
                f"{self._whose}: group {position} is {group!r:.80}; a group is a list of samples"
            )
        for field, why in _REFUSED.items():
            if getattr(sample, field, None):
                raise DataError(f"{self._whose}: group {position} has {field}; {why}")
        config = self._config
        row = {config.input_key: sample.prompt}
        if (label := getattr(sample, "label", None)) is not None:
            row[config.label_key or "label"] = label
        if metadata := getattr(sample, "metadata", None):
            row["metadata"] = metadata
            if isinstance(metadata, dict) and "tools" in metadata:
                row["tools"] = metadata["tools"]
        try:
            arrived(_task(row, position))
        except DataError as error:
            raise DataError(f"{self._whose}: {error}") from error
        return row

    @property
    def _whose(self) -> str:
        return f"{_FLAG} {self._place}"


def _task(row: dict[str, Any], position: int) -> Task:
    return Task(f"sample:{position}", row)
