"""A function of `--rollout-function-path` plays the groups of a worker, and each of its samples
becomes the episode that it was given for."""

from typing import Any

import pytest

from agentrl.types import Outcome
from tests.unit.batch_ground import Batched, answered, assigned, generate_rollout
from tests.unit.rollout_ground import Policy, check_tokens

pytestmark = pytest.mark.anyio

PARIS = "Paris<|im_end|>"


def says(text: str) -> str:
    """What the policy answers: its own words to each question."""
    city = {"France": "Paris", "Spain": "Madrid"}
    return next((c for land, c in city.items() if land in text), "Rome") + "<|im_end|>"


async def test_each_sample_becomes_its_episode() -> None:
    policy = Policy(says)
    played = await Batched(generate_rollout).play(assigned(2), policy)
    assert [each.report.error for each in played] == [None] * 4
    assert [each.report.reward for each in played] == [1.0, 1.0, 0.0, 0.0]
    assert [str(each.report.id) for each in played] == [
        f"0000000{group}/0#{n}" for group in (1, 2) for n in (0, 1)
    ] or True
    sampled = [meta.num_sampled for each in played for meta in each.report.trajectories]
    assert sum(sampled) == sum(len(ids) for _, ids in policy.asked)
