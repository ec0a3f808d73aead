"""The learning rate as a function of completed steps."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.learner.megatron.schedule import DecayStyle, learning_rate

BASE: dict[str, Any] = {"lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "total_steps": 14}


def test_warm_up_rises_linearly_and_has_no_step_of_rate_zero() -> None:
    rates = [learning_rate(step, style="linear", **BASE) for step in range(4)]
    assert rates == [0.25, 0.5, 0.75, 1.0]


def test_linear_decay_falls_by_equal_amounts_to_the_minimum_in_the_last_step() -> None:
    rates = [learning_rate(step, style="linear", **BASE) for step in range(3, 14)]
    assert [a - b for a, b in itertools.pairwise(rates)] == pytest.approx([0.09] * 10)
    assert rates[-1] == pytest.approx(0.1)


def test_cosine_decay_is_half_way_down_in_the_middle() -> None:
    assert learning_rate(8, style="cosine", **BASE) == pytest.approx(0.55)
    assert learning_rate(5, style="cosine", **BASE) == pytest.approx(
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.2))
    )


def test_constant_needs_no_end_and_the_others_do() -> None:
    endless = BASE | {"total_steps": None}
    assert learning_rate(10**6, style="constant", **endless) == 1.0
    with pytest.raises(ValueError, match="cosine decay needs to know"):
        learning_rate(4, style="cosine", **endless)


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        learning_rate(-1, style="constant", **BASE)


@given(
    step=st.integers(0, 200),
    warmup=st.integers(0, 50),
    total=st.integers(1, 100),
    style=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_after_the_warm_up_a_rate_never_rises_nor_leaves_its_bounds(
    step: int, warmup: int, total: int, style: DecayStyle
) -> None:
    def rate(at: int) -> float:
        return learning_rate(
            at, lr=2.0, min_lr=0.5, style=style, warmup_steps=warmup, total_steps=total
        )

    assert 0.0 < rate(step) <= 2.0
    assert rate(step + max(total, warmup)) >= 0.5 - 1e-12
    assert step < warmup or rate(step + 1) <= rate(step) + 1e-12
