"""Starvation: what is counted of a group, and the ratio that follows."""

import pytest

from agentrl.buffer.starvation import Starvation
from agentrl.wire.messages import GroupScore, ScoreGroup
from tests.unit.buffer_bench import Bench, bench


def test_slow_groups_that_are_trained_like_the_others_do_not_starve() -> None:
    starvation = Starvation(rollout_batch_size=4)
    for wall_s in range(20):
        starvation.account(float(wall_s), 100 + wall_s, 50 + wall_s // 2)
    assert starvation.ratio() == pytest.approx(1.0, abs=0.01)


def test_starvation_is_the_share_of_the_slowest_tenth_over_that_of_all() -> None:
    starvation = Starvation(rollout_batch_size=4)
    for wall_s in range(20):
        is_slow = wall_s >= 18
        starvation.account(float(wall_s), 300 if is_slow else 100, 60 if is_slow else 100)
    assert starvation.ratio() == pytest.approx((120 / 600) / (1920 / 2400))


def test_it_cannot_be_told_of_few_groups_or_when_nothing_was_trained() -> None:
    starvation = Starvation(rollout_batch_size=4)
    for _ in range(9):
        starvation.account(1.0, 10, 10)
    starvation.account(1.0, 0, 0)
    assert starvation.ratio() is None
    starvation.account(1.0, 10, 10)
    assert starvation.ratio() == 1.0
    starvation = Starvation(rollout_batch_size=4)
    for _ in range(20):
        starvation.account(1.0, 10, 0)
    assert starvation.ratio() is None


def test_only_the_last_ten_iterations_are_looked_back_on() -> None:
    starvation = Starvation(rollout_batch_size=4)
    for _ in range(4):
        starvation.account(99.0, 10, 0)
    for _ in range(40):
        starvation.account(1.0, 10, 10)
    assert starvation.ratio() == 1.0


def iterate(b: Bench, number: int, slow: int = 0) -> None:
    """Play, lease and publish a batch; half of the tokens of the slow group are of version 1."""
    b.supply()
    for episode in b.assigned("w0.1"):
        is_slow = episode.mint == slow
        versions = ((1, 2), (2, 2)) if is_slow else ((number, 4),)
        b.finish("w0.1", episode.id, versions=versions, wall_s=50.0 if is_slow else 1.0)
    b.judge_all("w0.1")
    b.play_all("w0.1", versions=((number, 4),))
    b.lease(number)
    b.step(number)
    b.publish(number + 1, number, number)


@pytest.mark.parametrize(
    ("policy", "told"), [("mask", (6 / 8) / (78 / 80)), ("drop", (4 / 8) / (80 / 84))]
)
def test_the_buffer_tells_what_masking_and_dropping_take_from_the_slow(
    policy: str, told: float
) -> None:
    b = bench(
        rollout_batch_size=10,
        n_samples_per_prompt=1,
        async_buffer_size=0,
        max_staleness=0,
        staleness_policy=policy,
    )
    assert "starvation" not in b.core.stats()
    iterate(b, 1)
    assert b.core.stats()["starvation"] == 1.0
    iterate(b, 2, slow=13)
    assert b.core.stats()["starvation"] == pytest.approx(told)


def test_a_group_that_failed_counts_as_generated_and_one_that_was_filtered_says_nothing() -> None:
    b = bench(rollout_batch_size=10, n_samples_per_prompt=1, async_buffer_size=0, max_staleness=0)
    iterate(b, 1)
    b.supply()
    (first, second, *_) = b.assigned("w0.1")
    b.finish("w0.1", first.id, wall_s=50.0)
    b.judge_all("w0.1", keep=False)
    assert b.core.stats()["starvation"] == 1.0
    b.finish("w0.1", second.id, wall_s=50.0)
    (order,) = b.take("w0.1", ScoreGroup)
    b.say("w0.1", GroupScore(order.group, error="the filter raised"))
    assert b.core.stats()["starvation"] == 0.0


def test_a_time_that_is_no_number_is_none() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, wall_s=float("nan"))
    assert b.core.state.episodes[1, 0].wall_s == 0.0
