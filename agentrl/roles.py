"""Who the policy was: the name under which it played a conversation, and what that earned. Pure.

    solver       a role
    solver#2     a conversation of that role, named by its author

A trajectory bears such a name (`TrajectoryMeta.role`). What a name earned is one number, however
many segments its conversation has. Conversations of a role are compared with each other, over all
episodes of a group.
"""

from collections.abc import Iterable, Mapping

from agentrl.errors import EnvError
from agentrl.types import TrajectoryMeta

__all__ = [
    "MAX_NAME",
    "MAX_ROLE",
    "POLICY",
    "by_role",
    "earned",
    "is_name",
    "is_role",
    "moved",
    "rewards_of",
    "role_of",
]

#: The name of a conversation that has no other.
POLICY = "policy"
#: Characters of a name.
MAX_NAME = 64
#: Characters of a role whose conversations are numbered: #0 to #9999999.
MAX_ROLE = MAX_NAME - 8


def is_name(text: str) -> bool:
    """Whether a trajectory may be called so."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def is_role(text: str) -> bool:
    """Whether a role may be called so whose conversations are numbered."""
    return is_name(text) and len(text) <= MAX_ROLE and role_of(text) == text


def role_of(name: str) -> str:
    """The role of a name: what stands before its first `#`."""
    return name.partition("#")[0] or name


def rewards_of(
    names: Iterable[str], given: Mapping[str, float], also: Iterable[str] = ()
) -> dict[str, float]:
    """What each of `names` earned, of rewards that are `given` by name or by role. `also`: names
    that played, and left nothing to be trained. Raises EnvError for a name that has none, and for a
    reward of who did not play."""
    found: dict[str, float] = {}
    for name in names:
        key = name if name in given else role_of(name)
        if key not in given:
            raise EnvError(
                f"the policy played {name!r}, and the rewards are of {sorted(given)}: give one to "
                f"{role_of(name)!r} too"
            )
        found[name] = given[key]
    played = sorted({*found, *also})
    if unknown := sorted({*given} - {*played, *map(role_of, played)}):
        raise EnvError(
            f"the rewards are of {unknown} too, and the policy played {played}: leave out who did "
            "not play"
        )
    return found


def earned(
    metas: Iterable[TrajectoryMeta], env_reward: float | None, reward: float
) -> dict[str, float]:
    """What each name of an episode earned that is worth `reward`, where `env_reward` is the fact of
    that name (`EpisodeFacts`)."""
    if env_reward is None:
        return {meta.role: reward for meta in metas}
    return {meta.role: moved(meta.reward, env_reward, reward) for meta in metas}


def moved(reward: float, own: float, judged: float) -> float:
    """`reward` of a part of an episode whose `own` reward has become `judged`: what a judge gives
    to the episode, or takes from it, each part gets."""
    return judged if reward == own else reward + (judged - own)


def by_role(episodes: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """The rewards of each role in a group, one for each of its conversations, in order of
    `episodes`, which are rewards by name."""
    found: dict[str, list[float]] = {}
    for rewards in episodes:
        for name, reward in rewards.items():
            found.setdefault(role_of(name), []).append(reward)
    return found
