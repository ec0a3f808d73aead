"""The learning rate of each step, against Megatron's own scheduler under slime's arguments."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from agentrl.config.rates import policys_steps, with_critics_rate, with_end
from agentrl.config.run import RunConfig
from agentrl.learner.megatron.schedule import LearningRate

TOTAL = 40
#: Episodes of a step: slime's scheduler counts these, ours counts steps.
EPISODES = 64
COURSES: dict[str, dict[str, Any]] = {
    "constant": {},
    "constant after a warm-up": {"lr_warmup_iters": 5},
    "linear": {"lr_decay_style": "linear", "min_lr": 1e-7, "lr_warmup_iters": 4},
    "cosine by a fraction": {"lr_decay_style": "cosine", "lr_warmup_fraction": 0.1},
    "cosine by a fraction of no whole step": {
        "lr_decay_style": "cosine",
        "lr_warmup_fraction": 0.03,
        "lr_decay_iters": 25,
        "min_lr": 1e-8,
    },
    "a warm-up from above 0": {
        "lr_decay_style": "cosine",
        "lr_warmup_iters": 7,
        "lr_warmup_init": 2e-7,
    },
    "inverse-square-root": {
        "lr_decay_style": "inverse-square-root",
        "lr_warmup_iters": 6,
        "min_lr": 5e-7,
    },
    **{
        f"WSD {style}": {
            "lr_decay_style": "WSD",
            "lr_wsd_decay_style": style,
            "lr_wsd_decay_iters": 12,
            "lr_warmup_iters": 3,
            "min_lr": 1e-7,
        }
        for style in ("exponential", "linear", "cosine", "minus_sqrt")
    },
}


def rates_of(num_steps: int, **flags: Any) -> list[float]:
    rate = LearningRate(RunConfig(lr=1e-6, **flags), TOTAL)
    return [rate.after(step) for step in range(num_steps)]


def slimes(num_steps: int, **flags: Any) -> list[float]:
    """What slime's scheduler says once each of so many steps is done; it counts episodes."""
    cfg = RunConfig(lr=1e-6, **flags)
    end = (cfg.lr_decay_iters or TOTAL) * EPISODES
    fraction, wsd = cfg.lr_warmup_fraction, cfg.lr_wsd_decay_iters
    groups: list[dict[str, float]] = [{"lr": 0.0}]
    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=groups),
        init_lr=cfg.lr_warmup_init,
        max_lr=cfg.lr,
        min_lr=cfg.min_lr,
        lr_warmup_steps=cfg.lr_warmup_iters * EPISODES if fraction is None else fraction * end,
        lr_decay_steps=end,
        lr_decay_style=cfg.lr_decay_style,
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=TOTAL * EPISODES,
        wd_incr_style="constant",
        wsd_decay_steps=None if wsd is None else wsd * EPISODES,
        lr_wsd_decay_style=cfg.lr_wsd_decay_style,
    )
    found = []
    for _ in range(num_steps):
        scheduler.step(EPISODES)
        found.append(groups[0]["lr"])
    return found


@pytest.mark.parametrize("course", COURSES)
def test_every_step_has_the_rate_that_slime_gives_the_next_one(course: str) -> None:
    flags = COURSES[course]
    ours = rates_of(TOTAL + 5, **flags)
    assert ours == pytest.approx(slimes(TOTAL + 5, **flags), rel=1e-12)
    assert ours[0] > 0


def test_a_warm_up_rises_linearly_and_has_no_step_of_rate_zero() -> None:
    assert rates_of(4, lr_warmup_iters=4) == pytest.approx([2.5e-7, 5e-7, 7.5e-7, 1e-6])


def test_a_decay_falls_to_the_minimum_in_the_last_step_and_stays_there() -> None:
    rates = rates_of(TOTAL + 3, lr_decay_style="linear", min_lr=1e-7)
    falls = [a - b for a, b in itertools.pairwise(rates[:TOTAL])]
    assert falls == pytest.approx([9e-7 / TOTAL] * (TOTAL - 1))
    assert rates[TOTAL - 1 :] == pytest.approx([1e-7] * 4)


def test_a_constant_rate_needs_no_end() -> None:
    assert LearningRate(RunConfig(lr=1.0, lr_warmup_iters=3), None).after(10**6) == 1.0


@given(
    step=st.integers(0, 200),
    warmup=st.integers(0, 50),
    end=st.integers(51, 100),
    style=st.sampled_from(["constant", "linear", "cosine", "WSD"]),
)
def test_after_the_warm_up_a_rate_never_rises_nor_leaves_its_bounds(
    step: int, warmup: int, end: int, style: Any
) -> None:
    flags: dict[str, Any] = {"lr_decay_style": style, "lr_warmup_iters": warmup}
    cfg = RunConfig(lr=2.0, min_lr=0.5, lr_decay_iters=end, lr_wsd_decay_iters=1, **flags)
    rate = LearningRate(cfg, None)
    assert 0.0 < rate.after(step) <= 2.0
    assert rate.after(step + end) >= 0.5 - 1e-12
    assert step < warmup or rate.after(step + 1) <= rate.after(step) + 1e-12


def test_the_policys_decay_is_over_the_steps_that_the_policy_takes() -> None:
    """Beside a critic that is first trained alone; both decays end with the run."""
    ppo: dict[str, Any] = {
        "advantage_estimator": "ppo",
        "lr": 1e-3,
        "min_lr": 1e-4,
        "lr_decay_style": "linear",
        "num_critic_only_steps": 3,
        "num_steps_per_rollout": 2,
    }
    without_end = RunConfig(**ppo, rollout_batch_size=4)
    for config, total in (
        (RunConfig(**ppo, num_rollout=10), 20),
        (RunConfig(**ppo, lr_decay_iters=14), None),
        (with_end(without_end, range(40)), None),
    ):
        policy = LearningRate(config, policys_steps(config, total))
        critic = LearningRate(with_critics_rate(config), total)
        assert policy.after(12) > 1.1e-4
        assert policy.after(13) == pytest.approx(1e-4)
        assert critic.after(18) > 1.1e-4
        assert critic.after(19) == pytest.approx(1e-4)
