"""What stops the learner before it does harm: other weights, unknown versions, no place to save."""

from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError, HealthError
from agentrl.wire.messages import Published, Publishing
from tests.integration.learner_world import GOAL, World, learn
from tests.integration.toy_backend import ToyBackend, ToyGroup


def test_an_engine_with_other_weights_stops_the_first_iteration_with_the_numbers() -> None:
    world = World([11] * 3, shift=0.05)
    with pytest.raises(HealthError, match=r"264 on-policy tokens is 0\.05 in the mean"):
        learn(world)
    assert [type(message) for message in world.delivered] == [Publishing, Published]


def test_engines_that_disagree_are_asked_what_they_hold_and_the_one_at_fault_is_named() -> None:
    class Seen(World):
        def inspect(self) -> None:
            raise HealthError("engine-1 no longer holds version 0")

    with pytest.raises(HealthError, match="engine-1 no longer holds"):
        learn(Seen([11] * 3, shift=0.05))
    learn(Seen([11] * 3))  # nobody asks in vain


def test_a_token_of_an_unknown_version_stops_the_learner() -> None:
    world = World([2], claim=7)
    with pytest.raises(DataError, match="unknown version 7 in lease 1"):
        learn(world)


def test_a_learner_without_a_place_to_save_is_refused_before_it_publishes() -> None:
    world = World([2])
    with pytest.raises(ConfigError, match="--save-hf or --run-id"):
        learn(world, save_hf=None)
    assert not world.delivered


def test_another_reference_model_stops_the_first_iteration() -> None:
    class OtherReference(ToyBackend):
        def __init__(self, group: ToyGroup, rank: int, lr: float = 10.0) -> None:
            super().__init__(group, rank, lr)
            self._initial[:, GOAL] += 1.0

    flags: dict[str, Any] = {"num_steps_per_rollout": 2, "use_kl_loss": True, "kl_loss_coef": 0.1}
    with pytest.raises(HealthError, match=r"reference model is .* first optimizer step"):
        learn(World([2]), backend_class=OtherReference, num_ranks=2, **flags)
