"""Episodes of a run as plain structs: ledger rows beside the columns that are still kept, and what
the run's objective makes of their rewards.

Only reads; of a run that is still going on, one moment. Columns are read for the episodes that were
asked for and for no others.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.load import shown_algorithm
from agentrl.algorithms.rows import Credit
from agentrl.buffer.ids import group_id
from agentrl.buffer.moment import read_moment
from agentrl.buffer.rows import EpisodeRow, GroupRow, LedgerState, StoredTrajectory
from agentrl.buffer.store import read_payload, segments_in
from agentrl.columns import split
from agentrl.config.run import RunConfig
from agentrl.errors import StoreError
from agentrl.lineage import Lineage
from agentrl.roles import earned
from agentrl.types import (
    EpisodeId,
    Fate,
    GroupRows,
    Outcome,
    SpanKind,
    StopReason,
    TrajectoryMeta,
    TrajectoryRow,
)
from agentrl.view.choice import Choice, Key, Line, choose
from agentrl.view.config import read_objective
from agentrl.wire.arrays import as_arrays

__all__ = ["EpisodeView", "TrajectoryView", "read_episodes", "read_facts"]

Columns = dict[str, npt.NDArray[np.generic]]

#: Fates of a group that failed as a whole.
_FAILURES = (Fate.ENV_ERROR, Fate.ENGINE_ERROR, Fate.POISON)

#: Reward and credit of an episode that has none.
_UNSCORED: tuple[float | None, Credit | None] = (None, None)


class TrajectoryView(msgspec.Struct, frozen=True):
    """A trajectory of T tokens. `columns`: by name, of shape (T, ...). `ages`: int64
    of shape (T,), in iterations of the lease that trained it, -1 where there is none. Both are
    None, and `missing` says why, when its bytes are not there."""

    meta: TrajectoryMeta
    columns: Columns | None
    ages: npt.NDArray[np.int64] | None
    missing: str = ""


class EpisodeView(msgspec.Struct, frozen=True):
    """An episode and its group. `scored`: the reward that was trained, None before its scores or
    when it is not done. `credit`: what the objective makes of it among its group's; None where
    there is no reward, or dialogues are imitated."""

    group: GroupRow
    row: EpisodeRow
    scored: float | None
    credit: Credit | None
    trajectories: tuple[TrajectoryView, ...]

    @property
    def name(self) -> str:
        """Group, index and attempt, as logs name it."""
        return f"{group_id(self.row.mint)}/{self.row.index}#{self.row.attempt}"

    @property
    def reward(self) -> float | None:
        """The scored reward, or else the Env's own; None unless the episode is done."""
        if self.row.outcome is not Outcome.DONE:
            return None
        return self.row.reward if self.scored is None else self.scored

    @property
    def advantage(self) -> float | None:
        """That with which each sampled token is trained; None where there is none, or turns or
        roles have advantages of their own."""
        value = None if self.credit is None else self.credit.value
        return None if isinstance(value, (tuple, dict)) else value

    def advantage_of(self, name: str) -> float | None:
        """That of what the policy sampled under `name`; None as for `advantage`."""
        value = None if self.credit is None else self.credit.of(name).value
        return None if isinstance(value, (tuple, dict)) else value

    @property
    def roles(self) -> dict[str, float]:
        """The scored reward, or else the Env's own, of each name under which the policy played;
        empty where all earned what the episode did, or nothing."""
        own, reward = self.row.facts.env_reward, self.reward
        if own is None or reward is None:
            return {}
        return earned((stored.meta for stored in self.row.trajectories), own, reward)


def read_episodes(run_dir: Path, choice: Choice) -> list[EpisodeView]:
    """The chosen episodes of the run in `run_dir`; none where no episode fits.

    Raises StoreError when there is no readable ledger, or as `choose`, and says
    why; EnvironmentSetupError when the ledger of a running run cannot be copied.
    """
    state, chosen, bare = _chosen(run_dir, choice)
    folder = run_dir / "payload"
    on_disk = set(segments_in(folder))
    lineage = Lineage(state.versions)
    return [_with_columns(bare[key], folder, on_disk, lineage) for key in chosen]


def read_facts(run_dir: Path, choice: Choice) -> list[EpisodeView]:
    """As `read_episodes`, by the ledger alone: without trajectories."""
    _, chosen, bare = _chosen(run_dir, choice)
    return [bare[key] for key in chosen]


def _chosen(run_dir: Path, choice: Choice) -> tuple[LedgerState, list[Key], dict[Key, EpisodeView]]:
    path = run_dir / "ledger.db"
    if not path.exists():
        raise StoreError(
            f"{run_dir} has no ledger.db: it is no run directory, or its run ended while it started"
        )
    state = read_moment(path)
    on_disk = set(segments_in(run_dir / "payload"))
    bare = _episodes(state, read_objective(run_dir))
    failed = {key[0] for key, episode in bare.items() if _has_failed(episode.row)}
    lines = [_line(episode, on_disk, failed) for episode in bare.values()]
    return state, choose(choice, lines, run_dir), bare


def _line(episode: EpisodeView, on_disk: set[int], failed: set[int]) -> Line:
    """`failed`: groups with an episode that failed; of others that failed, scoring did."""
    group, row, stored = episode.group, episode.row, episode.row.trajectories
    kept = bool(stored) and all(line.payload.segment in on_disk for line in stored)
    in_vain = group.fate in _FAILURES and row.mint not in failed
    return Line(
        key=(row.mint, row.index),
        lease=group.lease,
        reward=episode.reward,
        stored=bool(stored),
        kept=kept,
        task=group.task.id,
        failed=in_vain or _has_failed(row),
    )


def _has_failed(row: EpisodeRow) -> bool:
    return row.outcome not in (None, Outcome.DONE)


def _episodes(state: LedgerState, objective: RunConfig) -> dict[Key, EpisodeView]:
    groups = {group.mint: group for group in state.groups}
    algorithm = shown_algorithm(objective)
    done: dict[int, list[EpisodeRow]] = {mint: [] for mint in groups}
    for row in state.episodes:
        if row.outcome is Outcome.DONE:
            done[row.mint].append(row)
    scored = {mint: _scored(groups[mint], done[mint], algorithm) for mint in groups}
    episodes: dict[Key, EpisodeView] = {}
    for row in state.episodes:
        is_done = row.outcome is Outcome.DONE
        reward, credit = next(scored[row.mint], _UNSCORED) if is_done else _UNSCORED
        episodes[row.mint, row.index] = EpisodeView(groups[row.mint], row, reward, credit, ())
    return episodes


def _scored(
    group: GroupRow, done: Sequence[EpisodeRow], algorithm: Algorithm | None
) -> Iterator[tuple[float, Credit | None]]:
    """Reward and credit of the done episodes, in order of index."""
    rewards = group.rewards or ()
    if algorithm is None or not rewards:
        return zip(rewards, repeat(None), strict=False)
    ids = [EpisodeId(group_id(row.mint), row.index, row.attempt) for row in done]
    rows = GroupRows(
        group=group_id(group.mint),
        mint=group.mint,
        task=group.task.id,
        episodes=ids,
        rewards=list(rewards),
        metrics=[row.metrics for row in done],
        trajectories=[
            TrajectoryRow(id, line.meta, line.payload)
            for id, row in zip(ids, done, strict=True)
            for line in row.trajectories
        ],
        stop_reasons=[row.stop_reason or StopReason.ERROR for row in done],
        facts=[row.facts for row in done],
    )
    return zip(rewards, credits_of(algorithm, rows), strict=True)


def _with_columns(
    episode: EpisodeView, folder: Path, on_disk: set[int], lineage: Lineage
) -> EpisodeView:
    lease = episode.group.lease
    read = tuple(_read(line, folder, on_disk, lineage, lease) for line in episode.row.trajectories)
    return msgspec.structs.replace(episode, trajectories=read)


def _read(
    line: StoredTrajectory, folder: Path, on_disk: set[int], lineage: Lineage, lease: int | None
) -> TrajectoryView:
    if line.payload.segment not in on_disk:
        why = f"segment {line.payload.segment} was let go to stay within --keep-trajectories"
        return TrajectoryView(line.meta, None, None, why)
    try:
        payload = read_payload(folder, line.payload)
    except StoreError as error:
        return TrajectoryView(line.meta, None, None, str(error))
    layout = line.meta.layout
    columns = as_arrays(layout, line.meta.num_tokens, split(layout, payload))
    return TrajectoryView(line.meta, columns, _ages(columns, lineage, lease))


def _ages(columns: Columns, lineage: Lineage, lease: int | None) -> npt.NDArray[np.int64]:
    versions = columns["versions"]
    ages = np.full(versions.shape, -1, dtype=np.int64)
    if lease is not None:
        sampled = columns["kinds"] == SpanKind.SAMPLED
        for version in np.unique(versions[sampled]).tolist():
            if version in lineage:
                ages[sampled & (versions == version)] = lineage.age(version, lease)
    return ages
