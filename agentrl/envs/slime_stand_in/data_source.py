"""Where samples come from, as the data sources of slime's users are written: subclasses of these.

`RolloutDataSource` gives the rows of `--prompt-data`, in the order in which a run goes through
them. Nothing is ever handed back (`add_samples`). `save` and `load` are called for a class that
defines both itself, and may call those that it inherits: state goes to `args.save` and comes from
`args.load`. Any other gives the same rows in the same order when it is made again.
"""

import abc
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.envs.buffer_filter import BUFFER_FILTERS, chosen
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.slime_stand_in.types import Sample
from agentrl.envs.sources import RowSource
from agentrl.user_code import load

__all__ = ["DataSource", "RolloutDataSource", "RolloutDataSourceWithBuffer", "pop_first"]

Group = list[Sample]


class DataSource(abc.ABC):
    """Gives groups of samples."""

    @abc.abstractmethod
    def get_samples(self, num_samples: int) -> list[Group]:
        """The next groups, at most `num_samples`; none where there are no more."""

    def add_samples(self, samples: Sequence[Group]) -> None:
        """Called by no one here."""
        raise NotImplementedError("this data source takes no samples back")

    def save(self, rollout_id: int) -> None:  # noqa: B027 - a subclass may leave it out
        """Write down where it stands; called at first, and after each `get_samples`, with their
        number."""

    def load(self, rollout_id: int | None = None) -> None:  # noqa: B027 - likewise
        """Go to where it stood at `save(rollout_id)`; called when a run goes on."""


class Dataset:
    """The rows of `args.prompt_data` as samples, in the order of the epoch that was last asked for.
    None is made before it is asked for."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self._rows = RowSource(
            args.prompt_data, seed=args.rollout_seed, shuffle=args.rollout_shuffle
        )
        self.epoch_id = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Sample:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no row {place} of {len(self)}")
        return self.at(self.epoch_id, place % len(self))

    def shuffle(self, new_epoch_id: int) -> None:
        """Go to the order of an epoch, which is that of the rows without --rollout-shuffle."""
        self.epoch_id = new_epoch_id

    @property
    def samples(self) -> "Sequence[Sample]":
        """All of the epoch."""
        return [self[place] for place in range(len(self))]

    def at(self, epoch: int, place: int) -> Sample:
        """The sample of a row."""
        self.epoch_id = epoch
        args, row = self._args, self._rows.at(epoch * len(self) + place).row
        keys = {"prompt": args.input_key, "label": args.label_key}
        known = {name: find(row, key) for name, key in keys.items() if key and holds(row, key)}
        metadata = find(row, args.metadata_key) if holds(row, args.metadata_key) else {}
        if holds(row, args.tool_key):
            metadata = {**metadata, "tools": find(row, args.tool_key)}
        return Sample(**copy.deepcopy(known), metadata=copy.deepcopy(metadata))


class RolloutDataSource(DataSource):
    """The rows of `args.prompt_data`, each as `args.n_samples_per_prompt` samples."""

    def __init__(self, args: Any) -> None:
        self.args = args
        #: The epoch, and the rows of it that were given; groups and samples of all epochs.
        self.epoch_id = self.sample_offset = 0
        self.sample_group_index = self.sample_index = 0
        self.metadata: dict[str, Any] = {}
        self.dataset = Dataset(args)
        #: Rows of all epochs; None: there is no end of them.
        self._end = None
        if args.num_rollout is None:
            self._end = len(self.dataset) * (args.num_epoch or 1)

    def __len__(self) -> int:
        """Rows of one epoch."""
        return len(self.dataset)

    def get_samples(self, num_samples: int) -> list[Group]:
        """See `DataSource`. Rows come again in each epoch of --num-epoch, and without end under
        --num-rollout."""
        left = num_samples
        if self._end is not None:
            left = self._end - self.epoch_id * len(self) - self.sample_offset
        return [self._next() for _ in range(min(num_samples, left))]

    def save(self, rollout_id: int) -> None:
        """See `DataSource`."""
        path = _state_path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self._state()))

    def load(self, rollout_id: int | None = None) -> None:
        """See `DataSource`. Raises FileNotFoundError where it saved nothing of that number."""
        path = _state_path(self.args.load, rollout_id)
        self._restore(msgspec.json.decode(path.read_bytes(), type=_State))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add to `metadata`, which is saved."""
        self.metadata.update(metadata)

    def get_metadata(self) -> dict[str, Any]:
        """What was added."""
        return self.metadata

    def _state(self) -> "_State":
        return _State(**{name: getattr(self, name) for name in _PLACE})

    def _restore(self, state: "_State") -> None:
        for name in _PLACE:
            setattr(self, name, getattr(state, name))

    def _next(self) -> Group:
        epochs, self.sample_offset = divmod(self.sample_offset, len(self))
        self.epoch_id += epochs
        first = self.dataset.at(self.epoch_id, self.sample_offset)
        group = [copy.deepcopy(first) for _ in range(self.args.n_samples_per_prompt)]
        for sample in group:
            sample.group_index, sample.index = self.sample_group_index, self.sample_index
            self.sample_index += 1
        self.sample_group_index += 1
        self.sample_offset += 1
        return group


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """The same, after what a subclass put into `buffer` itself. `buffer_filter`: what chooses among
    that, the function of `--buffer-filter-path`; by default the first."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.buffer: list[Group] = []
        place = args.buffer_filter_path
        self.buffer_filter = load(BUFFER_FILTERS, place) if place else pop_first

    def get_samples(self, num_samples: int) -> list[Group]:
        """See `DataSource`."""
        kept = self._kept(num_samples) if self.buffer and num_samples > 0 else []
        return [*kept, *super().get_samples(num_samples - len(kept))]

    def _kept(self, num: int) -> list[Group]:
        groups = self.buffer
        taken, dropped = chosen(self.buffer_filter, self.args, groups, num)
        out = {*taken, *dropped}
        self.buffer = [group for place, group in enumerate(groups) if place not in out]
        return [groups[place] for place in taken]

    def add_samples(self, samples: Sequence[Group]) -> None:
        """Put groups where the next `get_samples` finds them."""
        self.buffer.extend(samples)

    def get_buffer_length(self) -> int:
        """Groups in the buffer."""
        return len(self.buffer)

    def _state(self) -> "_State":
        return msgspec.structs.replace(super()._state(), buffer=self.buffer)

    def _restore(self, state: "_State") -> None:
        super()._restore(state)
        self.buffer = state.buffer


class _State(msgspec.Struct, frozen=True):
    """Where a source stands. Of a buffer what a Sample has by itself is kept."""

    sample_offset: int
    sample_index: int
    buffer: list[Group] = []
    epoch_id: int = 0
    sample_group_index: int = 0
    metadata: dict[str, Any] = {}


_PLACE = ("sample_offset", "sample_index", "epoch_id", "sample_group_index", "metadata")


def _state_path(folder: str, rollout_id: int | None) -> Path:
    return Path(folder) / "rollout" / f"global_dataset_state_dict_{rollout_id}.json"


def pop_first(args: Any, rollout_id: int | None, buffer: list[Group], num: int) -> list[Group]:
    """The first `num` groups of `buffer`, which it then no longer holds."""
    del args, rollout_id
    taken, buffer[:] = buffer[:num], buffer[num:]
    return taken
