"""A lease header becomes the steps of an iteration: what is trained, by which rank, at what weight.

Pure, and from the header alone: every rank computes the same plan before it has fetched a row.
Denominators count sampled tokens before masking, so that masking never amplifies what survives.
A trajectory without a gradient (`Credit.skip`: of advantage 0, unless the loss has another term) is
counted and not computed. Groups of equal rewards are many early and late in training: this is
exact, and the learner's time goes to those that teach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.role_rewards import require_role_level
from agentrl.algorithms.rows import Credit, facts_of, first_turns
from agentrl.errors import DataError
from agentrl.learner.packing import balance, split_evenly
from agentrl.types import EpisodeId, GroupRows, LeaseHeader, TrajectoryRow

__all__ = ["PlannedRow", "StepPlan", "plan_iteration"]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One trajectory to train: its credit, the weight of each of its trained tokens in the step's
    loss (the reciprocal of the global denominator), how many turns came before it, what it
    counts for as a whole (the reciprocal of the step's episodes, or of its tokens where these
    are averaged), and which part of a mixture it is of."""

    row: TrajectoryRow
    credit: Credit
    weight: float
    first_turn: int = 0
    share: float = 1.0
    part: str = ""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: `shards[r]` is what data-parallel rank r trains. `num_targets`: what its
    tokens count for in the loss, over all ranks."""

    shards: tuple[tuple[PlannedRow, ...], ...]
    num_targets: float


def plan_iteration(
    header: LeaseHeader,
    algorithm: Algorithm,
    data_parallel_size: int,
    removed: frozenset[EpisodeId] = frozenset(),
) -> tuple[StepPlan, ...]:
    """The optimizer steps of a lease: its groups, in order and whole, in at most
    `--num-steps-per-rollout` parts. Parts in which nothing can be trained are left out. `removed`:
    episodes that are counted and not trained.

    Raises DataError for a header that contradicts itself.
    """
    parts = split_evenly(len(header.groups), algorithm.cfg.num_steps_per_rollout)
    plans = [
        _plan_step([header.groups[i] for i in part], algorithm, data_parallel_size, removed)
        for part in parts
    ]
    return tuple(plan for plan in plans if plan.num_targets > 0)


def _plan_step(
    groups: Sequence[GroupRows],
    algorithm: Algorithm,
    num_ranks: int,
    removed: frozenset[EpisodeId],
) -> StepPlan:
    num_episodes = sum(len(group.episodes) for group in groups)
    num_targets = sum(
        algorithm.num_targets(row.meta) for group in groups for row in group.trajectories
    )
    planned: list[PlannedRow] = []
    for group in groups:
        require_role_level(algorithm.cfg, group)
        credits = dict(zip(group.episodes, credits_of(algorithm, group), strict=True))
        per_episode = _targets_by_episode(group, algorithm)
        part = facts_of(group)[0].part if group.episodes else ""
        for row, first_turn in zip(group.trajectories, first_turns(group), strict=True):
            credit = credits[row.episode].of(row.meta.role)
            is_counted_alone = credit.skip or row.episode in removed
            if is_counted_alone or algorithm.num_targets(row.meta) == 0:
                continue
            if algorithm.cfg.loss_length is not None:
                denominator = float(num_episodes * algorithm.cfg.loss_length)
            elif algorithm.cfg.calculate_per_token_loss:
                denominator = num_targets
            else:
                denominator = num_episodes * per_episode[row.episode]
            whole = num_targets if algorithm.cfg.calculate_per_token_loss else num_episodes
            planned.append(
                PlannedRow(row, credit, 1.0 / denominator, first_turn, 1.0 / whole, part)
            )
    together = _together(planned, algorithm.needs.whole_episodes)
    lengths = [sum(item.row.meta.num_tokens for item in items) for items in together]
    shards = [
        [item for i in shard for item in together[i]] for shard in balance(lengths, num_ranks)
    ]
    return StepPlan(shards=tuple(map(tuple, shards)), num_targets=num_targets)


def _together(planned: Sequence[PlannedRow], whole_episodes: bool) -> list[list[PlannedRow]]:
    """What one rank trains: each trajectory by itself, or those of an episode."""
    if not whole_episodes:
        return [[item] for item in planned]
    found: dict[EpisodeId, list[PlannedRow]] = {}
    for item in planned:
        found.setdefault(item.row.episode, []).append(item)
    return list(found.values())


def _targets_by_episode(group: GroupRows, algorithm: Algorithm) -> dict[EpisodeId, float]:
    counts = dict.fromkeys(group.episodes, 0.0)
    for row in group.trajectories:
        if row.episode not in counts:
            raise DataError(
                f"group {group.group} holds a trajectory of episode {row.episode}, which is not "
                "one of its episodes: the lease header is damaged"
            )
        counts[row.episode] += algorithm.num_targets(row.meta)
    return counts
