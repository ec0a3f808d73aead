"""A lease header becomes the steps of an iteration: what is trained, by which rank, at what weight.

Pure, and from the header alone: every rank computes the same plan before it has fetched a row.
Denominators count sampled tokens before masking, so that masking never amplifies what survives.
A trajectory of advantage 0 has no policy gradient; unless the loss has another term, it is counted
and not computed. Groups of equal rewards are many early and late in training: this is exact, and
the learner's time goes to those that teach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.advantage import group_advantages
from agentrl.learner.packing import balance, split_evenly
from agentrl.types import EpisodeId, GroupRows, LeaseHeader, TrajectoryMeta, TrajectoryRow

__all__ = ["PlannedRow", "StepPlan", "plan_iteration"]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One trajectory to train: its advantage, and the weight of each of its trained tokens in the
    step's loss (the reciprocal of the global denominator)."""

    row: TrajectoryRow
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: `shards[r]` is what data-parallel rank r trains. `num_targets`: what its
    tokens count for in the loss, over all ranks."""

    shards: tuple[tuple[PlannedRow, ...], ...]
    num_episodes: int
    num_targets: float


def plan_iteration(
    header: LeaseHeader, cfg: RunConfig, data_parallel_size: int
) -> tuple[StepPlan, ...]:
    """The optimizer steps of a lease: its groups, in order and whole, in at most
    `--num-steps-per-rollout` parts. Parts in which nothing can be trained are left out.

    Raises DataError for a header that contradicts itself.
    """
    parts = split_evenly(len(header.groups), cfg.num_steps_per_rollout)
    plans = [
        _plan_step([header.groups[i] for i in part], cfg, data_parallel_size) for part in parts
    ]
    return tuple(plan for plan in plans if plan.num_targets > 0)


def _plan_step(groups: Sequence[GroupRows], cfg: RunConfig, num_ranks: int) -> StepPlan:
    num_episodes = sum(len(group.episodes) for group in groups)
    num_targets = sum(_targets(row.meta, cfg) for group in groups for row in group.trajectories)
    planned: list[PlannedRow] = []
    for group in groups:
        advantages = _advantage_by_episode(group, cfg)
        per_episode = _targets_by_episode(group, cfg)
        for row in group.trajectories:
            advantage = advantages[row.episode]
            if _targets(row.meta, cfg) == 0 or (advantage == 0.0 and not _has_other_terms(cfg)):
                continue
            denominator = (
                num_targets
                if cfg.calculate_per_token_loss
                else num_episodes * per_episode[row.episode]
            )
            planned.append(PlannedRow(row, advantage, 1.0 / denominator))
    shards = balance([item.row.meta.num_tokens for item in planned], num_ranks)
    return StepPlan(
        shards=tuple(tuple(planned[i] for i in shard) for shard in shards),
        num_episodes=num_episodes,
        num_targets=num_targets,
    )


def _targets(meta: TrajectoryMeta, cfg: RunConfig) -> float:
    """What the tokens of a trajectory count for in the loss: sampled ones 1; under `sft_loss`
    demonstrated ones 1 and others their weight, but for the first, which nothing predicts."""
    if not cfg.is_supervised:
        return meta.num_sampled
    context = meta.num_tokens - meta.num_demonstrated - 1
    return meta.num_demonstrated + cfg.prompt_loss_weight * context


def _has_other_terms(cfg: RunConfig) -> bool:
    """Whether a token without advantage still has a gradient, or is measured."""
    return cfg.loss_type != "policy_loss" or cfg.entropy_coef != 0.0 or cfg.use_kl_loss


def _advantage_by_episode(group: GroupRows, cfg: RunConfig) -> dict[EpisodeId, float]:
    if len(group.episodes) != len(group.rewards):
        raise DataError(
            f"group {group.group} has {len(group.episodes)} episodes and "
            f"{len(group.rewards)} rewards: the lease header is damaged"
        )
    return dict(zip(group.episodes, group_advantages(group.rewards, cfg), strict=True))


def _targets_by_episode(group: GroupRows, cfg: RunConfig) -> dict[EpisodeId, float]:
    counts = dict.fromkeys(group.episodes, 0.0)
    for row in group.trajectories:
        if row.episode not in counts:
            raise DataError(
                f"group {group.group} holds a trajectory of episode {row.episode}, which is not "
                "one of its episodes: the lease header is damaged"
            )
        counts[row.episode] += _targets(row.meta, cfg)
    return counts
