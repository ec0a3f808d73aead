"""Rewards that an Env gives to the episodes of a group together (`Env.score_group`).

    order with each episode's own reward -> a fresh Env sees all of them -> order with its rewards

An error of the Env, a missed deadline or an answer that is no list of rewards is the group's fate.
An infrastructure error is tried again, ATTEMPTS times in all: the episodes have been played, and a
service that is away for a moment may not cost them.
"""

import functools
import logging
from collections.abc import Callable

import anyio
import msgspec

from agentrl.actors.boundary import Boundary, Raised, describe, isolated
from agentrl.actors.limits import Limits
from agentrl.bounds import reward_defect
from agentrl.envs.env import Env, late_reward
from agentrl.errors import EnvError, InfrastructureError
from agentrl.roles import moved
from agentrl.types import EpisodeSummary
from agentrl.wire.messages import ScoreGroup

__all__ = ["ATTEMPTS", "PAUSE_S", "scored"]

_LOG = logging.getLogger(__name__)

#: Times that a group is shown to an Env whose infrastructure fails, and seconds between two.
ATTEMPTS, PAUSE_S = 3, 10.0


async def scored(
    order: ScoreGroup, make_env: Callable[[], Env], limits: Limits, pause_s: float = PAUSE_S
) -> ScoreGroup:
    """The same order with the group's rewards. Raises EnvError in words for a report."""
    for attempt in range(1, ATTEMPTS + 1):
        found = await isolated(
            functools.partial(_scored, order, make_env, limits.episode_timeout_s), "score_group"
        )
        if not isinstance(found, Raised):
            return found
        failure = found.failure
        if isinstance(failure, EnvError):
            raise failure
        words = describe(failure)
        if not isinstance(failure, InfrastructureError):
            raise EnvError(f"score_group failed: {words}") from failure
        if attempt < ATTEMPTS:
            _LOG.warning("group %s is scored again: %s", order.group, words)
            await anyio.sleep(pause_s)
    raise EnvError(f"score_group failed {ATTEMPTS} times: {words}") from failure


async def _scored(
    order: ScoreGroup, make_env: Callable[[], Env], timeout_s: float, boundary: Boundary
) -> ScoreGroup:
    env = make_env()
    try:
        if not env.scores_groups:  # its class can, and this one was told not to
            return order
        limit_s, flag = timeout_s, "--episode-timeout-s"
        if env.reward_timeout_s is not None:
            limit_s, flag = env.reward_timeout_s, "--reward-timeout-s"
        with anyio.move_on_after(limit_s) as deadline:
            rewards: object = await env.score_group(order.task.row, order.episodes)
    finally:
        await boundary.close(env, f"group {order.group}")
    if deadline.cancelled_caught:
        raise late_reward(env, f"within {limit_s:g} s ({flag})", "score_group")
    return _with_rewards(order, rewards, type(env).__name__)


def _with_rewards(order: ScoreGroup, rewards: object, name: str) -> ScoreGroup:
    num = len(order.episodes)
    advice = f"return {num} finite numbers, in the order of the episodes"
    try:
        numbers = [float(reward) for reward in rewards]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError) as error:
        raise EnvError(f"{name}.score_group returned {rewards!r:.100}; {advice}") from error
    if len(numbers) != num:
        raise EnvError(f"{name}.score_group returned {numbers!r:.100}; {advice}")
    for place, number in enumerate(numbers):
        if found := reward_defect(number):
            said = f"{name}.score_group returned {numbers!r:.100}; {advice}"
            raise EnvError(f"{said}: the reward in place {place} is {found}")
    pairs = zip(order.episodes, numbers, strict=True)
    episodes = [_with_reward(each, reward) for each, reward in pairs]
    return msgspec.structs.replace(order, episodes=episodes)


def _with_reward(episode: EpisodeSummary, reward: float) -> EpisodeSummary:
    own = episode.earned.items()
    earned = {name: moved(each, episode.reward, reward) for name, each in own}
    return msgspec.structs.replace(episode, reward=reward, earned=earned)
