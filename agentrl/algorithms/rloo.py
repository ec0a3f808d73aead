"""Leave-one-out advantages: each reward against the mean of the others."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.grpo import has_zero_std
from agentrl.algorithms.rows import Credit
from agentrl.algorithms.turn_rewards import by_turn, later_turns
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows

__all__ = ["Rloo"]


class Rloo(Algorithm):
    """`R - mean of the other rewards of the group`, which is unbiased: no reward is in its own
    baseline.

    RLOO: Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE; Ahmadian et al. 2024,
    equation 8, https://arxiv.org/abs/2402.14740. A group of equal rewards has advantage
    exactly 0. `--reward-level turn` compares what was earned from a turn on with the mean of what
    each other episode earned from the same turn on (0 where it had ended). No reward of an episode,
    and not the number of its turns, is in its own baseline, so that this is unbiased too.
    """

    deviations = (
        "the ratio is clipped as PPO's, for tokens are off-policy here; "
        "there is no KL in the reward; "
        "under `--reward-level turn` an action is a turn (there a whole answer)"
    )
    reads = TERMS | {"eps_clip_c"}
    reward_levels = Algorithm.reward_levels | {"turn"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        self.needs = msgspec.structs.replace(self.needs, min_group=2)

    def credit(self, group: GroupRows) -> Sequence[Credit]:
        if self.cfg.reward_level != "turn":
            return super().credit(group)
        earned = [later_turns(turns) for turns in by_turn(group)]
        columns = [self.values(column) for column in zip_longest(*earned, fillvalue=0.0)]
        by_episode = zip(*columns, strict=True)
        return self.credits_by_turn(
            [tuple(values[: len(own)]) for values, own in zip(by_episode, earned, strict=True)]
        )

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        if has_zero_std(rewards):
            return [0.0] * len(rewards)
        total, others = math.fsum(rewards), len(rewards) - 1
        return [reward - (total - reward) / others for reward in rewards]
