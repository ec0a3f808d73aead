"""`--reward-level role`: what each role earned, and what follows from it for its conversations.

Pure, from the lease header alone: `TrajectoryMeta.reward` has what the Env gave to each name under
which the policy played (`agentrl.roles`). No paper is followed: each role is compared as the
estimator compares episodes.
"""

from collections.abc import Callable, Sequence

from agentrl.algorithms.rows import facts_of
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.roles import by_role, earned, role_of
from agentrl.types import EpisodeId, GroupRows, TrajectoryMeta

__all__ = ["by_name", "require_role_level", "role_credits"]


def by_name(group: GroupRows) -> list[dict[str, float]]:
    """What each name of each episode earned. What the judge, or a penalty for length, made of an
    episode's reward, it made of those of all its names."""
    metas: dict[EpisodeId, list[TrajectoryMeta]] = {episode: [] for episode in group.episodes}
    for row in group.trajectories:
        metas[row.episode].append(row.meta)
    pairs = zip(metas.values(), facts_of(group), group.rewards, strict=True)
    return [earned(own, fact.env_reward, reward) for own, fact, reward in pairs]


def role_credits(
    group: GroupRows, values: Callable[[Sequence[float]], Sequence[float]]
) -> list[dict[str, float]]:
    """The advantages of each episode's names: `values` compares the rewards of a role's
    conversations, over all episodes of the group, and those of no other role."""
    names = by_name(group)
    compared = {}
    for role, rewards in by_role(names).items():
        found = list(values(rewards))
        if len(found) != len(rewards):
            raise DataError(
                f"group {group.group}: there are {len(found)} values for the {len(rewards)} "
                f"rewards of role {role}"
            )
        compared[role] = iter(found)
    return [{name: next(compared[role_of(name)]) for name in each} for each in names]


def require_role_level(cfg: RunConfig, group: GroupRows) -> None:
    """Raise DataError for roles with rewards of their own, where the run has one for an episode:
    groups that were played under another `--reward-level`."""
    if cfg.reward_level != "role" and any(fact.env_reward is not None for fact in group.facts):
        raise DataError(
            f"group {group.group}: its roles have rewards of their own, which --reward-level "
            f"{cfg.reward_level} would drop: give --reward-level role, under which it was played"
        )
