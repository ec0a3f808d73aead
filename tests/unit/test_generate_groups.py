"""`--group-rm` beside functions that play: a reward that sees the samples of a group together."""

from typing import Any

import msgspec
import pytest

from agentrl.actors.scoring import scored
from agentrl.envs.slime_stand_in.rm_hub import async_rm, batched_async_rm
from agentrl.types import EpisodeSummary, Outcome, Task
from agentrl.wire.messages import ScoreGroup
from tests.unit.batch_ground import SIZE, Batched, answered, assigned
from tests.unit.generate_asking import asked
from tests.unit.generate_ground import CONFIG, TASK, TURNS, env_of, play_function
from tests.unit.rollout_ground import LIMITS, Policy
from tests.unit.test_batches import says

pytestmark = pytest.mark.anyio

GROUPS = msgspec.structs.replace(CONFIG, group_rm=True)
SEEN: list[Any] = []


async def by_place(args: Any, samples: list[Any], **kwargs: Any) -> list[float]:
    """The later in its group, the better; half as much where the label is missing."""
    assert args.group_rm
    SEEN.append([sample.response for sample in samples])
    return [
        place * (1.0 if sample.label in sample.response else 0.5)
        for place, sample in enumerate(samples, 1)
    ]


def texts(texts: list[str], label: str, task: dict[str, Any]) -> list[float]:
    return [float(len(text.removesuffix("<|im_end|>"))) for text in texts]


async def once(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    return sample


async def of_one(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    sample.reward = await async_rm(args, sample)
    return sample


async def of_its_own(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    sample.reward = (await batched_async_rm(args, [sample]))[0]
    return sample


def reward(name: str) -> dict[str, Any]:
    return {"reward": f"{__name__}:{name}", "group_rm": True}


@pytest.mark.parametrize(("name", "rewards"), [("by_place", [1.0, 1.0]), ("texts", [5.0, 6.0])])
async def test_a_group_of_a_function_is_scored_when_all_have_ended(
    name: str, rewards: list[float]
) -> None:
    played = [
        await play_function(once, Policy([f"{word}<|im_end|>"]), config=GROUPS, **reward(name))
        for word in ("Paris", "Madrid")
    ]
    assert [each.report.reward for each in played] == [0.0, 0.0]
    episodes = [
        EpisodeSummary(
            place, Outcome.DONE, each.report.stop_reason, 0.0, {}, each.report.answer, sampled=1
        )
        for place, each in enumerate(played)
    ]
    order = ScoreGroup("00000001", Task("t", TASK.row), episodes)
    found = await scored(order, env_of(once, GROUPS, **reward(name)), LIMITS)
    assert [each.reward for each in found.episodes] == rewards


@pytest.mark.parametrize("function", [of_one, of_its_own])
async def test_one_sample_has_no_reward_before_its_group_has_ended(function: Any) -> None:
    played = await play_function(function, Policy([*TURNS]), config=GROUPS, **reward("by_place"))
    assert "compares the answers of a group, and this is one sample" in str(played.report.error)
    assert "one of --custom-generate-function-path leaves it None" in str(played.report.error)


async def test_an_evaluation_shows_a_groups_reward_one_sample() -> None:
    assignment = {"evaluation": "held"}
    policy = Policy(["Paris<|im_end|>"])
    played = await play_function(
        once, policy, config=GROUPS, assignment=assignment, **reward("by_place")
    )
    assert played.report.error is None
    assert played.report.reward == 1.0


async def test_a_function_of_many_groups_asks_for_the_rewards_of_each() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = [await answered(args, group) for group in data_source.get_samples(2)]
        for group in groups:
            for sample, worth in zip(group, await batched_async_rm(args, group), strict=True):
                sample.reward = worth
        return groups

    SEEN.clear()
    batched = Batched(generate, config=GROUPS, sees_groups=True, **reward("by_place"))
    played = await batched.play(assigned(2), Policy(says))
    assert [each.report.error for each in played] == [None] * 4
    assert [each.report.reward for each in played] == [1.0, 2.0, 0.5, 1.0]
    assert [len(each) for each in SEEN] == [SIZE, SIZE]


async def test_a_function_of_many_groups_that_leaves_a_reward_out_is_told_how() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = [await answered(args, group) for group in data_source.get_samples(2)]
        for group in groups:
            group[0].reward = None
        return groups

    batched = Batched(generate, config=GROUPS, sees_groups=True, **reward("by_place"))
    played = await batched.play(assigned(2), Policy(says))
    errors = [str(each.report.error) for each in played]
    assert ["gives each group to batched_async_rm" in error for error in errors] == [
        *(True, False),
        *(True, False),
    ]
