"""The samples that a log function is given, and one that converts the samples of a lease.

    of an iteration     one for each trajectory, with its tokens; texts are decoded when asked for;
                        `index` and `rollout_id` are those of its episode
    of an evaluation    one for each episode: the text of its last turn, and no token
    of scored groups    the same, with whether the filter kept the group

Their metadata are those of the task's row, or all of a row without any, and what the episode has
counted. Label, prompt and reward stand where the flags of the task's part of a mixture, or of its
evaluation set, say (`Keys`). `status` is COMPLETED where the task came to its own end, else
TRUNCATED. A response reaches from the first token that the policy, or a demonstration, wrote.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.columns import EXCLUDED
from agentrl.config.mixture import parts_of
from agentrl.config.run import RunConfig
from agentrl.envs.rows.keys import find, holds
from agentrl.envs.slime_stand_in.types import Sample, places
from agentrl.rollout_file import read_columns, read_rollouts
from agentrl.types import GroupRows, SpanKind, StopReason, TrajectoryRow
from agentrl.wire.messages import ScoredGroup

__all__ = [
    "GroupSample",
    "Keys",
    "LoggedSample",
    "ScoredEpisode",
    "ScoredSample",
    "keys_of",
    "of_groups",
    "samples_of",
    "samples_of_groups",
    "scored",
]

Decode = Callable[[list[int]], str]

#: What is made when it is asked for, for most functions look at little of it.
_LATER = ("tokens", "loss_mask", "rollout_log_probs", "weight_versions", "prompt", "response")
#: Parts of a reward that is a dict, among the metrics of an episode.
_PART = "reward."


class Keys(msgspec.Struct, frozen=True):
    """Where rows have prompt and label; `reward`: the number of a dict that is trained."""

    input: str
    label: str
    reward: str | None


def keys_of(config: RunConfig) -> Keys:
    """Those of the flags under which a task is played."""
    return Keys(config.input_key, config.label_key or "label", config.reward_key)


class LoggedSample(Sample):
    """A trajectory of a lease."""

    def __init__(
        self, columns: Mapping[str, npt.NDArray[Any]], decode: Decode, keys: Keys, **known: Any
    ):
        super().__init__(**known)
        self._keys = keys
        for name in _LATER:
            delattr(self, name)
        self._columns, self._decode = columns, decode
        kinds = columns["kinds"]
        written = np.isin(kinds, (SpanKind.SAMPLED, SpanKind.DEMONSTRATION)).nonzero()[0]
        self._start = int(written[0]) if len(written) else len(kinds)
        self.response_length = len(kinds) - self._start

    def __repr__(self) -> str:
        """In a line, and without its texts: a tokenizer would be looked for to decode them."""
        return (
            f"LoggedSample(group_index={self.group_index}, index={self.index}, "
            f"response_length={self.response_length}, reward={self.reward!r}, "
            f"status={self.status.name})"
        )

    def get_reward_value(self, args: Any) -> Any:
        """The reward that is trained."""
        return _trained(self.reward, self._keys)

    @cached_property
    def tokens(self) -> list[int]:  # type: ignore[override]
        """All of them."""
        return _listed(self._columns["tokens"])

    @cached_property
    def loss_mask(self) -> list[int]:  # type: ignore[override]
        """1 for each token of the response that is there to be trained."""
        return _listed(self.masked().astype(int))

    def masked(self) -> npt.NDArray[np.bool_]:
        """Whether each token of the response is there to be trained, whatever became of
        `loss_mask`."""
        kinds = self._columns["kinds"][self._start :]
        mask = np.isin(kinds, (SpanKind.SAMPLED, SpanKind.DEMONSTRATION))
        if EXCLUDED.name in self._columns:
            mask &= self._columns[EXCLUDED.name][self._start :] == 0
        return mask

    @cached_property
    def rollout_log_probs(self) -> list[float]:  # type: ignore[override]
        """The engine's, of each token of the response; 0 where nothing was sampled."""
        return _listed(self._columns["logprobs"][self._start :])

    @cached_property
    def weight_versions(self) -> list[str]:  # type: ignore[override]
        """Those that sampled a token of it."""
        versions = self._columns["versions"]
        return [str(version) for version in np.unique(versions[versions >= 0])]

    @cached_property
    def prompt(self) -> str:
        """What stands before the response, as the model read it."""
        return self._decode(self.tokens[: self._start])

    @cached_property
    def response(self) -> str:  # type: ignore[override]
        """The response, with what others wrote between its turns."""
        return self._decode(self.tokens[self._start :])


def samples_of(path: Path, config: RunConfig, decode: Decode) -> list[LoggedSample]:
    """Those of a lease that lies in a file. Raises DataError for one that is damaged."""
    groups = read_rollouts(path).lease.groups
    with path.open("rb") as file:
        columns = (
            _columns(row, read_columns(file, row)) for group in groups for row in group.trajectories
        )
        return samples_of_groups(groups, columns, config, decode)


def samples_of_groups(
    groups: Sequence[GroupRows],
    columns: Iterable[Mapping[str, npt.NDArray[Any]]],
    config: RunConfig,
    decode: Decode,
) -> list[LoggedSample]:
    """One for each trajectory of a lease; `columns`: those of each, by name, in order."""
    keys_in = _keys_of_parts(config)
    episodes, left = count(), iter(columns)
    found: list[LoggedSample] = []
    for place, group in enumerate(groups):
        keys = keys_in(group.part)
        known = dict(_known(group, keys, place, episodes))
        found += (
            LoggedSample(next(left), decode, keys, **known[row.episode])
            for row in group.trajectories
        )
    return found


def _keys_of_parts(config: RunConfig) -> Callable[[str], Keys]:
    """The keys of a task, by the name of its part."""
    usual, parts = keys_of(config), {part.name: keys_of(part.config) for part in parts_of(config)}
    return lambda part: parts.get(part, usual)


def _known(
    group: GroupRows, keys: Keys, place: int, episodes: Iterator[int]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Of each episode of a group what does not stand in its columns."""
    stops = group.stop_reasons or [StopReason.TERMINATED] * len(group.episodes)
    each = zip(group.episodes, group.rewards, group.metrics, stops, strict=True)
    for episode, reward, metrics, stop in each:
        index = next(episodes)
        own = {"group_index": place, "index": index, "rollout_id": index}
        yield episode, _facts(group.row, keys, reward, metrics, stop) | own


def _facts(
    row: dict[str, Any],
    keys: Keys,
    reward: float,
    metrics: Mapping[str, float],
    stop: StopReason,
) -> dict[str, Any]:
    metadata = row.get("metadata", row)
    own = metadata if isinstance(metadata, dict) else {"metadata": metadata}
    is_whole = stop is StopReason.TERMINATED
    parts = {n.removeprefix(_PART): v for n, v in metrics.items() if n.startswith(_PART)}
    return {
        "label": find(row, keys.label) if holds(row, keys.label) else None,
        "metadata": {**metrics, **own},
        "reward": {**parts, keys.reward: reward} if keys.reward else reward,
        "status": Sample.Status.COMPLETED if is_whole else Sample.Status.TRUNCATED,
    }


def _trained(reward: Any, keys: Keys) -> Any:
    return reward[keys.reward] if keys.reward else reward


def _columns(row: TrajectoryRow, data: bytes) -> dict[str, npt.NDArray[Any]]:
    found, end = {}, 0
    for column in row.meta.layout:
        start, end = end, end + column.token_bytes * row.meta.num_tokens
        found[column.name] = np.frombuffer(data[start:end], column.dtype)
    return found


def _listed(values: npt.NDArray[Any]) -> list[Any]:
    found: list[Any] = values.tolist()
    return found


class ScoredEpisode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An episode of an evaluation, as the buffer tells of it. `task`: its place in the set, from
    0; `index`: which of the task's samples; `answer`: the text of its last turn."""

    task: int
    index: int
    reward: float
    stop_reason: StopReason
    num_sampled: int = 0
    answer: str = ""
    metrics: dict[str, float] = {}


class ScoredSample:
    """An episode of an evaluation. `response`: the text of its last turn; `prompt`, `label`: as the
    row of its task has them; `response_length`: sampled tokens over all turns."""

    Status = Sample.Status
    _of = "an evaluation"

    def __init__(self, row: dict[str, Any], keys: Keys, place: int, episode: ScoredEpisode):
        self._keys = keys
        self.group_index, self.index = episode.task, place
        self.prompt = find(row, keys.input) if holds(row, keys.input) else None
        self.response = episode.answer
        self.response_length = self.effective_response_length = episode.num_sampled
        self.remove_sample = False
        vars(self).update(_facts(row, keys, episode.reward, episode.metrics, episode.stop_reason))

    def get_reward_value(self, args: Any) -> Any:
        """The number of the reward that counts."""
        return _trained(self.reward, self._keys)

    def to_dict(self) -> dict[str, Any]:
        """All that it has by name, the status as a word."""
        return self._own() | {"status": self.status.value}

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_keys"}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sample of {self._of} has no {name!r} here: no token of one is told, and it has "
            f"{', '.join(sorted(self._own()))} alone"
        )


def scored(
    rows: list[dict[str, Any]], keys: Keys, episodes: list[ScoredEpisode]
) -> dict[str, list[Any]]:
    """What is told of a set: `rewards`, `truncated` and `samples`, in order of tasks."""
    ordered = sorted(episodes, key=lambda episode: (episode.task, episode.index))
    return {
        "rewards": [episode.reward for episode in ordered],
        "truncated": [e.stop_reason is not StopReason.TERMINATED for e in ordered],
        "samples": [
            ScoredSample(rows[episode.task], keys, place, episode)
            for place, episode in enumerate(ordered)
        ],
    }


class GroupSample(ScoredSample):
    """An episode of a scored group: as one of an evaluation, with its trained reward. `kept`:
    whether the filter kept its group; `reason`: what it said. `group_index` and `index` count from
    the first group of the run."""

    _of = "a scored group"

    def __init__(self, group: ScoredGroup, keys: Keys, index: int, episode: ScoredEpisode) -> None:
        super().__init__(group.task.row, keys, index, episode)
        self.kept, self.reason = group.kept, group.reason


def of_groups(groups: Iterable[ScoredGroup], config: RunConfig) -> list[list[GroupSample]]:
    """The samples of each group, in the order in which the run began the groups."""
    keys_in = _keys_of_parts(config)
    found, size = [], config.n_samples_per_prompt
    for group in sorted(groups, key=lambda group: group.mint):
        keys, (place, first) = keys_in(group.task.part), places(group.mint, 0, size)
        episodes = [
            ScoredEpisode(
                task=place,
                index=each.index,
                reward=each.reward,
                stop_reason=each.stop_reason,
                num_sampled=each.sampled,
                answer=each.answer,
                metrics=each.metrics,
            )
            for each in group.episodes
        ]
        found.append([GroupSample(group, keys, first + each.index, each) for each in episodes])
    return found
