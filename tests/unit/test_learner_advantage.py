"""Edge cases of group advantages (the formula itself is checked in tests/parity)."""

import math

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.advantage import group_advantages, has_zero_std


@pytest.mark.parametrize("rewards", [[1.0], [0.1, 0.1, 0.1], [0.0] * 8, []])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(rewards: list[float]) -> None:
    assert has_zero_std(rewards)
    assert group_advantages(rewards, RunConfig()) == [0.0] * len(rewards)


def test_a_nearly_equal_group_is_not_blown_up_beyond_its_epsilon() -> None:
    advantages = group_advantages([0.0, 1e-9], RunConfig())
    assert max(map(abs, advantages)) < 1e-2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(DataError, match="a reward must be a finite number"):
        group_advantages([0.0, bad], RunConfig())
