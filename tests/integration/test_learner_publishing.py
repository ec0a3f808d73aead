"""Versions: published by the interval, at the end, and again to an engine that came late."""

from agentrl.wire.messages import PushDone, Stepped
from tests.integration.learner_world import GROUP_SIZE, World, learn


def test_a_longer_interval_publishes_every_second_iteration_and_the_rest_at_the_end() -> None:
    world = World([2] * 5, mark_last=False)
    outcome, _ = learn(world, update_weights_interval=2)
    assert [(p.row.version, p.through) for p in world.of(PushDone)] == [
        (0, 0),
        (1, 2),
        (2, 4),
        (3, 5),
    ]
    ages = [step.metrics["train/age_histogram"] for step in world.of(Stepped)]
    num_sampled = 2 * GROUP_SIZE * 6
    assert ages == [[num_sampled], [0, num_sampled]] * 2 + [[num_sampled]]
    assert outcome.reason == "tasks exhausted"


def test_an_engine_that_came_late_gets_the_newest_weights_under_their_own_number() -> None:
    world = World([2] * 3)
    world.republish = {1: 1}
    learn(world)
    assert world.pushes == [0, 0, 1, 2, 3]
    assert [message.row.version for message in world.of(PushDone)] == [0, 1, 2, 3]


def test_weights_that_moved_on_reach_a_late_engine_as_another_version() -> None:
    world = World([2] * 4)
    world.republish = {2: 1}
    learn(world, update_weights_interval=4)
    rows = [message.row for message in world.of(PushDone)]
    assert [(row.version, row.iteration) for row in rows] == [(0, 0), (1, 1), (2, 4)]
