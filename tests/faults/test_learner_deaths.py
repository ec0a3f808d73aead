"""The learner is killed at seven points of an iteration."""

import random

import pytest

from agentrl.buffer.leases import LEASE_DEATHS
from agentrl.types import Fate
from tests.faults import history
from tests.faults.counts import count
from tests.faults.lab import Lab
from tests.faults.settling import MakeLab, settled

pytestmark = pytest.mark.timeout(3600)

SYNCHRONOUS = {
    "async_buffer_size": 0,
    "max_staleness": 0,
    "save_interval": 1,
    "rollout_batch_size": 2,
}
#: None of these undoes a push: with S = 0 tokens of weights that a recovery undid are too old.
QUIET_POINTS = ("leased", "forward", "backward", "stepped", "renamed", "before_retire")
POINTS = (*QUIET_POINTS, "half_written")


def undisturbed(lab: MakeLab, iterations: int) -> Lab:
    one = lab(num_rollout=iterations, **SYNCHRONOUS)
    with one:
        one.finish()
    return one


def story(one: Lab) -> list[dict[str, object]]:
    """What was trained, and to which weights."""
    return [record.data for record in history.read(one.folder, "trained")]


def die_at(one: Lab, points: list[str]) -> None:
    for point in points:
        one.steps_more(1)
        one.end_at("learner-0", point)
        one.replace("learner-0")


def test_d3_a_learner_that_dies_mid_step_ends_with_the_weights_of_one_that_did_not(
    lab: MakeLab, seed: int
) -> None:
    points = list(QUIET_POINTS) * count(3, 40)
    random.Random(seed).shuffle(points)
    iterations = 2 * len(points) + 4
    whole = settled(undisturbed(lab, iterations), "D3 (undisturbed)")
    one = lab(num_rollout=iterations, **SYNCHRONOUS)
    with one:
        die_at(one, points)
        one.finish()
    findings = settled(one, "D3")
    assert one.num_faults == len(points)
    assert findings.fates == {Fate.TRAINED: 2 * iterations}
    assert findings.weights == whole.weights
    digests = {data["after"] for data in story(one)}
    assert len(digests) > iterations // 2, "hardly an iteration changed a weight"


@pytest.mark.parametrize("behind", [False, True])
def test_d3_a_death_that_undoes_a_push_costs_no_group(
    lab: MakeLab, seed: int, behind: bool
) -> None:
    points = list(POINTS) + ["half_written"] * 2
    points *= count(1, 13)
    random.Random(seed).shuffle(points)
    one = lab(num_rollout=3 * len(points) + 4, async_save=behind)
    with one:
        die_at(one, points)
        one.finish()
    findings = settled(one, "D3 (checkpoints beside)" if behind else "D3 (buffer ahead)")
    assert one.num_faults == len(points)
    assert findings.fates == {Fate.TRAINED: findings.minted}
    assert len(history.read(one.folder, "trained")) > findings.iterations, "nothing was repeated"


def test_l4_a_lease_that_ends_its_learner_again_and_again_is_given_up(lab: MakeLab) -> None:
    """A planted bug: no learner survives the tenth group. The run completes without its lease."""
    one = lab(num_rollout=6)
    (one.folder / "bug").write_text("10")
    with one:
        one.may_need_a_restart("learner-0", LEASE_DEATHS)
        one.finish()
    findings = settled(one, "L4", also={Fate.POISON})
    told = [event.data for event in one.driving.events if event.kind == "lease_failed"]
    assert [data["deaths"] for data in told] == list(range(1, LEASE_DEATHS + 1))
    assert "00000010" in told[-1]["groups"]
    assert findings.fates[Fate.POISON] == len(told[-1]["groups"]) == 4
    assert (findings.iterations, findings.fates[Fate.TRAINED]) == (6, 24)


def test_r1_the_same_seed_gives_the_same_run(lab: MakeLab) -> None:
    first, second = (undisturbed(lab, 6) for _ in range(2))
    assert story(first) == story(second)
    assert len(story(first)) == 6
    different = lab(num_rollout=6, **SYNCHRONOUS, rollout_seed=7)
    with different:
        different.finish()
    assert story(different) != story(first)
