"""Schedules beside each other on small work: the shape of what asynchrony buys, and its limits."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

import msgspec
import pytest

from agentrl.sim import (
    SETUPS,
    Faults,
    LearnerCost,
    Lognormal,
    Result,
    Scenario,
    Workload,
    colocated_sync,
    drain_before_push,
    one_step_off,
    simulate,
)
from agentrl.sim.truth import PublishedWeights, Truth
from agentrl.types import EpisodeId

pytestmark = pytest.mark.slow

WARM_UP = 10
BOUND = 4


def small(name: str, *, seed: int = 0, iterations: int = 40) -> Scenario:
    """A setup with 8 groups of 4 episodes, and a learner that takes half of the time."""
    return Scenario(
        workload=SETUPS[name],
        seed=seed,
        iterations=iterations,
        rollout_batch_size=8,
        n_samples_per_prompt=4,
        max_staleness=BOUND,
        learner=LearnerCost(step_gpu_s=480.0),
    )


def dropping(scenario: Scenario) -> Scenario:
    """Groups with an old token are dropped; S stays."""
    return msgspec.structs.replace(scenario, staleness_policy="drop")


@cache
def asynchronous(name: str) -> Result:
    return simulate(small(name), WARM_UP)


@cache
def result(schedule: Callable[[Scenario], Scenario], name: str) -> Result:
    return simulate(schedule(small(name, iterations=15)), warm_up=4)


@pytest.mark.parametrize("schedule", [colocated_sync, one_step_off, drain_before_push])
@pytest.mark.parametrize("name", ["agent", "slow_tools"])
def test_asynchrony_beats_every_schedule_that_waits_for_episodes(
    name: str, schedule: Callable[[Scenario], Scenario]
) -> None:
    least = 2.0 if schedule is colocated_sync else 1.5
    assert asynchronous(name).iteration_s < result(schedule, name).iteration_s / least


@pytest.mark.parametrize("name", ["agent", "slow_tools"])
def test_no_token_beyond_the_bound_is_trained_and_few_are_masked(name: str) -> None:
    found = asynchronous(name)
    assert found.max_trained_age <= BOUND
    assert found.masked_share < 0.06
    assert found.max_age > 0


def test_slow_tools_do_make_tokens_older_than_the_bound() -> None:
    found = asynchronous("slow_tools")
    assert found.max_age > BOUND
    assert found.masked_share > 0


def test_dropping_groups_instead_of_masking_tokens_starves_the_slow_tasks() -> None:
    found = simulate(dropping(small("slow_tools")), WARM_UP)
    assert found.masked_share == 0
    assert found.max_age <= BOUND
    assert found.starvation < asynchronous("slow_tools").starvation - 0.2


@pytest.mark.parametrize("name", ["agent", "slow_tools"])
def test_synchronous_training_is_on_policy_and_one_step_off_is_one_step_off(name: str) -> None:
    assert result(colocated_sync, name).max_age == 0
    off = result(one_step_off, name)
    assert (off.mean_age, off.max_age) == (1, 1)


def test_a_scenario_has_one_result() -> None:
    scenario = small("agent", iterations=6)
    again = msgspec.structs.replace(scenario)
    assert simulate(scenario) == simulate(again)
    assert simulate(scenario) != simulate(small("agent", seed=1, iterations=6))


@pytest.mark.parametrize("delay_s", [0.0, 2.0])
def test_whole_turns_are_of_one_version_whether_the_word_of_a_push_comes_in_time_or_not(
    delay_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_versions: Counter[int] = Counter()

    def played(_: Truth, __: EpisodeId, spans: Iterable[tuple[PublishedWeights, int]]) -> None:
        num_versions[len(list(spans))] += 1

    single_turn = Scenario(
        workload=Workload(tokens=Lognormal(100.0, 0.2), task_sigma=0.0, turns=1),
        iterations=20,
        rollout_batch_size=8,
        num_engines=1,
        sglang_server_concurrency=4,
        faults=Faults(delay_s=delay_s),
        learner=LearnerCost(step_gpu_s=80.0),
    )
    monkeypatch.setattr(Truth, "played", played)
    monkeypatch.setattr(Truth, "trained", lambda *_: None)
    monkeypatch.setattr(Truth, "ended", lambda *_: None)
    simulate(single_turn)
    mixed, num_versions = num_versions[2], Counter()
    simulate(msgspec.structs.replace(single_turn, partial_rollout=False))
    assert mixed > 20
    assert num_versions[2] < mixed / 50
    assert num_versions[1] >= 20 * single_turn.rollout_batch_size
