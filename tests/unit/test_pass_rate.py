"""pass@k of evaluations and of training groups, against every way to draw k episodes."""

import collections
import itertools
import math
import random
import statistics

import pytest

from agentrl.telemetry.metrics import REGISTRY
from agentrl.telemetry.pass_rate import (
    majority_at,
    pass_at,
    pass_rates,
    pass_rates_of_groups,
)
from agentrl.types import EpisodeId, TrajectoryRow
from agentrl.wire.messages import Stepped
from tests.integration.learner_world import World, learn


def rates(*tasks: list[float]) -> dict[str, float]:
    """Of rewards by task, where nobody votes."""
    return pass_rates([[(reward, "") for reward in task] for task in tasks])


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        episodes = [True] * c + [False] * (n - c)
        draws = [any(draw) for draw in itertools.combinations(episodes, k)]
        assert pass_at(k, n, c) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_rates_are_means_over_tasks_with_the_interval_of_a_mean() -> None:
    found = rates([1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0.5] * 6)

    assert list(found)[::2] == ["pass@1", "pass@2", "pass@4", "pass@6", "avg@6"]
    ones = [1 / 6, 1.0, 0.0]
    assert found["pass@1"] == pytest.approx(statistics.fmean(ones))
    width = 1.96 * statistics.stdev(ones) / math.sqrt(3)
    assert found["pass@1_ci95"] == pytest.approx(width)
    assert found["pass@6"] == pytest.approx(2 / 3)
    assert found["avg@6"] == pytest.approx((1 / 6 + 1 + 0.5) / 3)


def test_a_rate_is_of_the_tasks_that_have_so_many_episodes_and_the_others_are_counted() -> None:
    found = rates([1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [])
    assert found["pass@2"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["pass@4"] == 1.0
    assert found["avg@4"] == pytest.approx((0.5 + 0.25) / 2)
    assert found["short_tasks"] == 2
    assert rates([1.0, 1.0], [])["short_tasks"] == 1
    assert "short_tasks" not in rates([1.0, 1.0], [0.0, 0.0])


def test_a_majority_is_of_the_tasks_that_have_so_many_episodes() -> None:
    four, two = [(1.0, "a"), (1.0, "a"), (0.0, "b"), (1.0, "a")], [(0.0, "b"), (0.0, "b")]
    assert pass_rates([four, two])["maj@4"] == 1.0


@pytest.mark.parametrize("rewards", [[], [[]], [[1.0], [0.0]]])
def test_sets_of_single_episodes_have_none(rewards: list[list[float]]) -> None:
    assert rates(*rewards) == {}


def test_every_rate_is_declared() -> None:
    for name in pass_rates([[(1.0, "a"), (0.0, "b")], [(0.0, ""), (1.0, "")]]):
        assert REGISTRY.find(f"eval/held/{name}") is not None
    assert REGISTRY.find("eval/held/passed") is None


@pytest.mark.parametrize(
    ("task", "worth"),
    [
        ([(1.0, "4"), (1.0, "4"), (0.0, "5")], 1.0),
        ([(0.0, "5"), (0.0, "5"), (1.0, "4")], 0.0),
        ([(1.0, "4"), (0.0, "5")], 0.5),  # as often: the mean of a draw
        ([(1.0, "4"), (0.0, "5"), (0.0, ""), (0.0, "")], 0.5),  # no answer is no vote
        ([(1.0, ""), (0.0, ""), (0.0, "")], 1 / 3),  # nobody votes
        ([(0.5, "4"), (1.0, "4"), (0.0, "5")], 0.75),  # one answer may earn this and that
    ],
)
def test_the_majority_earns_what_its_answer_does(
    task: list[tuple[float, str]], worth: float
) -> None:
    assert majority_at(len(task), task) == pytest.approx(worth)


def in_all_draws(k: int, task: list[tuple[float, str]]) -> float:
    """From the definition: draw by draw."""
    earned = []
    for draw in itertools.combinations(task, k):
        votes = collections.Counter(vote for _, vote in draw if vote)
        most = [vote for vote, times in votes.items() if times == max(votes.values())] or [""]
        of_answers = [statistics.fmean(r for r, vote in draw if vote == won) for won in most]
        earned.append(statistics.fmean(of_answers))
    return statistics.fmean(earned)


@pytest.mark.parametrize("seed", range(20))
def test_the_majority_of_some_episodes_is_its_mean_over_all_draws(seed: int) -> None:
    rng = random.Random(seed)
    task = [(rng.choice([0.0, 0.5, 1.0]), rng.choice(["", "4", "5", "6"])) for _ in range(8)]
    for k in range(1, 9):
        assert majority_at(k, task) == pytest.approx(in_all_draws(k, task))


def test_a_majority_of_thousands_is_counted() -> None:
    task = [(1.0, "4")] * 1500 + [(0.0, "5")] * 1500
    assert majority_at(3000, task) == 0.5
    assert majority_at(16, task) == pytest.approx(0.5)


def test_majorities_of_fewer_episodes_are_of_the_tasks_that_have_them() -> None:
    task = [(1.0, "4")] * 5 + [(0.0, "5")] * 3
    assert [name for name in pass_rates([task, task]) if "maj" in name and "ci" not in name] == [
        "maj@4",
        "maj@8",
    ]
    assert pass_rates([task])["maj@4"] == pytest.approx(in_all_draws(4, task))
    assert pass_rates([task, task[:3]])["maj@4"] == pass_rates([task])["maj@4"]


def test_a_majority_is_told_with_its_interval_where_any_episode_votes() -> None:
    found = pass_rates([[(1.0, "4"), (1.0, "4")], [(0.0, "5"), (0.0, "")]])
    assert found["maj@2"] == 0.5
    assert found["maj@2_ci95"] == pytest.approx(1.96 * statistics.stdev([1, 0]) / math.sqrt(2))
    assert "maj@2" not in rates([1.0, 1.0], [0.0, 0.0])


# ---- groups of training --------------------------------------------------------------------------


class OneOfFour(World):
    """The first episode of each group succeeds, and no other."""

    def _episode(self, episode: EpisodeId) -> tuple[TrajectoryRow, float]:
        return super()._episode(episode)[0], float(episode.index == 0)


@pytest.mark.parametrize("asked", [True, False])
def test_groups_of_an_iteration_have_pass_rates_where_they_are_asked_for(asked: bool) -> None:
    world = OneOfFour([2])
    learn(world, log_passrate=asked)
    (stepped,) = world.of(Stepped)
    found = {name: value for name, value in stepped.metrics.items() if "pass@" in name}
    rates = {"rollout/pass@1": 0.25, "rollout/pass@2": 0.5, "rollout/pass@4": 1.0}
    assert found == (rates if asked else {})
    assert all(REGISTRY.find(name) is not None for name in rates)


def test_rates_of_groups_are_of_powers_of_two_that_every_group_has() -> None:
    assert pass_rates_of_groups([[1, 0, 0], [0, 0, 0, 0]]) == {
        "pass@1": pytest.approx(1 / 6),
        "pass@2": pytest.approx(1 / 3),
    }
    assert pass_rates_of_groups([]) == pass_rates_of_groups([[1.0], [0.0, 1.0]]) == {}
