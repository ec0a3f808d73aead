"""Group-relative advantages: rewards of a group against its mean."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.rows import Credit
from agentrl.algorithms.turn_rewards import turn_credits
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows

__all__ = ["STD_EPSILON", "Grpo", "has_zero_std"]

#: Added to the group's standard deviation before dividing by it.
STD_EPSILON = 1e-6


class Grpo(Algorithm):
    """`(R - mean) / (std + 1e-6)`, std unbiased.

    GRPO: Shao et al. 2024, DeepSeekMath, section 4.1.2, https://arxiv.org/abs/2402.03300. Without
    the division (`--disable-grpo-std-normalization`): Dr.GRPO, Liu et al. 2025,
    https://arxiv.org/abs/2503.20783. `--disable-rewards-normalization` takes the rewards. A group
    of equal rewards, as any group of one, has advantage exactly 0. `--reward-level turn` compares
    what turns earned (`turn_rewards`), `role` what roles did (`role_rewards`).
    """

    reads = TERMS | {
        *("disable_grpo_std_normalization", "disable_rewards_normalization", "eps_clip_c"),
    }
    reward_levels = Algorithm.reward_levels | {"turn"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        least = 1 if cfg.disable_rewards_normalization or cfg.use_opd else 2
        advice = (
            " or give --disable-rewards-normalization (in slime too, a reward less the mean of its"
            " group of one is 0)"
        )
        self.needs = msgspec.structs.replace(self.needs, min_group=least, min_group_advice=advice)

    def credit(self, group: GroupRows) -> Sequence[Credit]:
        if self.cfg.reward_level != "turn":
            return super().credit(group)
        return self.credits_by_turn(turn_credits(group, self.values))

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        if self.cfg.disable_rewards_normalization:
            return rewards
        if has_zero_std(rewards):
            return [0.0] * len(rewards)
        mean = math.fsum(rewards) / len(rewards)
        centred = [reward - mean for reward in rewards]
        if self.cfg.disable_grpo_std_normalization:
            return centred
        std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
        return [value / (std + STD_EPSILON) for value in centred]


def has_zero_std(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal, so that GRPO learns nothing from it."""
    return len(rewards) == 0 or min(rewards) == max(rewards)
