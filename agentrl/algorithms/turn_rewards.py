"""`--reward-level turn`: what each turn earned, and what follows from it for its tokens.

Pure, from the lease header alone: `EpisodeFacts.turn_rewards` has what the Env gave with each step.

Shape suffix: N = actions of an episode.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.rows import facts_of, num_turns
from agentrl.errors import DataError
from agentrl.types import GroupRows

__all__ = ["at_last_actions", "by_turn", "later_turns", "turn_credits"]


def by_turn(group: GroupRows) -> list[list[float]]:
    """Rewards of each episode's turns, which add up to the episode's: what the judge, or a penalty
    for length, made of it beyond what its steps earned belongs to the last turn."""
    found = []
    for reward, fact, num in zip(group.rewards, facts_of(group), num_turns(group), strict=True):
        turns = list(fact.turn_rewards)
        if len(turns) > max(1, num):
            raise DataError(
                f"group {group.group}: an episode of {num} turns has {len(turns)} turn rewards: "
                "the lease header is damaged"
            )
        turns += [0.0] * (max(1, num) - len(turns))
        turns[-1] += reward - math.fsum(turns)
        found.append(turns)
    return found


def turn_credits(
    group: GroupRows, values: Callable[[Sequence[float]], Sequence[float]]
) -> list[tuple[float, ...]]:
    """The advantages of each episode's turns: `values` compares the rewards of all turns of the
    group, and a turn has the sum of its own value and those of the turns after it.

    GRPO with process supervision: Shao et al. 2024, DeepSeekMath, section 4.1.3,
    https://arxiv.org/abs/2402.03300; a turn is a step there.
    """
    rewards = by_turn(group)
    compared = iter(values([reward for turns in rewards for reward in turns]))
    return [later_turns([next(compared) for _ in turns]) for turns in rewards]


def later_turns(turns: Sequence[float]) -> tuple[float, ...]:
    """For each turn of an episode, the sum over it and the turns after it."""
    return tuple(math.fsum(turns[turn:]) for turn in range(len(turns)))


def at_last_actions(
    rewards: Sequence[float], turns_N: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """What each action earned, in order of turns: the reward of a turn stands at its last action,
    or, where it has none, at the last one before it (the first of all, where none is)."""
    found_N = np.zeros(len(turns_N))
    if len(turns_N):
        last = np.searchsorted(turns_N, np.arange(len(rewards)), side="right") - 1
        np.add.at(found_N, last.clip(min=0), rewards)
    return found_N
