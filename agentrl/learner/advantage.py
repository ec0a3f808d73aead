"""Rewards of a whole group become one advantage for each of its episodes.

Pure rules. The reward vector travels in the lease header, so the result does not depend on which
rank holds which row of the group.
"""

import math
from collections.abc import Callable, Sequence

from agentrl.bounds import reward_defect
from agentrl.config.run import RunConfig
from agentrl.errors import DataError

__all__ = ["ESTIMATORS", "STD_EPSILON", "group_advantages", "grpo", "has_zero_std"]

#: Added to the group's standard deviation before dividing by it.
STD_EPSILON = 1e-6


def has_zero_std(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal, so that GRPO learns nothing from it."""
    return len(rewards) == 0 or min(rewards) == max(rewards)


def group_advantages(rewards: Sequence[float], cfg: RunConfig) -> list[float]:
    """One advantage for each episode of a group, by `--advantage-estimator`.

    Raises DataError for a reward that is not within the bound, beyond which sums may overflow.
    """
    for reward in rewards:
        if found := reward_defect(reward):
            raise DataError(f"of the rewards {list(rewards)} one is {found}: check the judge")
    return ESTIMATORS[cfg.advantage_estimator](rewards, cfg)


def grpo(rewards: Sequence[float], cfg: RunConfig) -> list[float]:
    """`(R - mean) / (std + 1e-6)`, std unbiased.

    GRPO: Shao et al. 2024, DeepSeekMath, section 4.1.2, https://arxiv.org/abs/2402.03300. Without
    the division (`--disable-grpo-std-normalization`): Dr.GRPO, Liu et al. 2025,
    https://arxiv.org/abs/2503.20783. `--disable-rewards-normalization` returns the rewards. A group
    of equal rewards, as any group of one, has advantage exactly 0.
    """
    if cfg.disable_rewards_normalization:
        return list(rewards)
    if has_zero_std(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if cfg.disable_grpo_std_normalization:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (std + STD_EPSILON) for value in centred]


#: By the name of `--advantage-estimator`.
ESTIMATORS: dict[str, Callable[[Sequence[float], RunConfig], list[float]]] = {"grpo": grpo}
