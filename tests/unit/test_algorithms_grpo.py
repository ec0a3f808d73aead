"""Edge cases of group advantages (the formula itself is checked in tests/parity)."""

import math

import pytest

from agentrl.algorithms.base import credits_of
from agentrl.algorithms.grpo import has_zero_std
from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import Credit
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from tests.estimators import group_of


@pytest.mark.parametrize("rewards", [[1.0], [0.1, 0.1, 0.1], [0.0] * 8, []])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(rewards: list[float]) -> None:
    assert has_zero_std(rewards)
    credits = credits_of(load_algorithm(RunConfig()), group_of(rewards))
    assert credits == [Credit(0.0, skip=True)] * len(rewards)


def test_a_nearly_equal_group_is_not_blown_up_beyond_its_epsilon() -> None:
    advantages = load_algorithm(RunConfig()).values([0.0, 1e-9])
    assert max(map(abs, advantages)) < 1e-2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(DataError, match="a reward must be a finite number"):
        credits_of(load_algorithm(RunConfig()), group_of([0.0, bad]))
