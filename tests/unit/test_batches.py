"""A function of `--rollout-function-path` plays the groups of a worker, and each of its samples
becomes the episode that it was given for."""

import copy
from typing import Any

import anyio
import pytest

from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rm_hub import async_rm
from agentrl.envs.slime_stand_in.rollout_outputs import RolloutFnTrainOutput
from tests.unit.batch_ground import Batched, answered, assigned, generate_rollout
from tests.unit.rollout_ground import Policy, trained

pytestmark = pytest.mark.anyio

CITIES = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome"}


def says(text: str) -> str:
    """A word to each question."""
    return next(city for land, city in CITIES.items() if land in text) + "<|im_end|>"


async def test_each_sample_becomes_its_episode() -> None:
    policy = Policy(says)
    played = await Batched(generate_rollout).play(assigned(2), policy)
    assert [each.report.error for each in played] == [None] * 4
    assert [each.report.reward for each in played] == [1.0, 1.0, 0.0, 0.0]
    found = [(tuple(p), tuple(ids)) for each in played for p, ids in trained(each)]
    assert sorted(found) == sorted((tuple(p), tuple(ids)) for p, ids in policy.asked)


async def test_a_function_may_be_no_coroutine_and_return_a_bare_list() -> None:
    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        return [run(answered(args, group)) for group in data_source.get_samples(2)]

    played = await Batched(generate).play(assigned(2), Policy(says))
    assert [each.report.reward for each in played] == [1.0, 1.0, 0.0, 0.0]


async def test_calls_come_one_after_the_other_each_for_what_there_is() -> None:
    calls = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        calls.append((rollout_id, args.rollout_batch_size, len(groups), evaluation))
        args.seen = getattr(args, "seen", 0) + 1
        assert args.seen == rollout_id + 1  # what it adds to args stays there
        return RolloutFnTrainOutput([await answered(args, group) for group in groups])

    played = await Batched(generate, batch_size=2).play(assigned(5), Policy(says))
    assert [each.report.error for each in played] == [None] * 10
    assert calls == [(0, 2, 2, False), (1, 2, 2, False), (2, 1, 1, False)]


async def test_samples_carry_what_the_task_says_and_a_number_of_their_own() -> None:
    seen: list[Any] = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(2)
        seen.extend(copy.deepcopy(groups))
        return [await answered(args, group) for group in groups]

    await Batched(generate).play(assigned(2), Policy(says))
    assert [sample.label for group in seen for sample in group] == ["Paris"] * 4
    assert len({sample.index for group in seen for sample in group}) == 4
    assert [len({sample.group_index for sample in group}) for group in seen] == [1, 1]
    assert "capital of France" in seen[0][0].prompt


async def test_it_may_ask_for_the_reward_of_the_run_or_leave_it_to_the_worker() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = [await answered(args, group) for group in data_source.get_samples(2)]
        for sample in groups[0]:
            sample.reward = await async_rm(args, sample)
        for sample in groups[1]:
            sample.reward = None
        return groups

    played = await Batched(generate, rm_type="exact").play(assigned(2), Policy(says))
    assert [each.report.error for each in played] == [None] * 4
    assert [each.report.reward for each in played] == [1.0, 1.0, 0.0, 0.0]


async def test_an_episode_may_leave_several_samples_and_a_call_numbers() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = []
        for group in data_source.get_samples(1):
            other = copy.deepcopy(group)
            await answered(args, group)
            await answered(args, other)
            for one, two in zip(group, other, strict=True):
                one.reward = two.reward = 0.5
            groups.append([list(pair) for pair in zip(group, other, strict=True)])
        return RolloutFnTrainOutput(groups, metrics={"rollout/turns": 2, "kept": 1.0})

    played = await Batched(generate).play(assigned(1), Policy(says))
    assert [len(each.report.trajectories) for each in played] == [2, 2]
    assert [each.report.metrics["turns"] for each in played] == [2.0, 2.0]


async def test_what_the_run_cannot_give_now_is_not_waited_for() -> None:
    """A function that wants more than there is gets fewer, then none, and may end its groups."""
    given = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(7)
        given.append(len(groups))
        given.append(len(data_source.get_samples(1)))
        return [await answered(args, group) for group in groups]

    played = await Batched(generate).play(assigned(2), Policy(says))
    assert [each.report.error for each in played] == [None] * 4
    assert given == [2, 0]


async def test_a_part_of_a_group_is_made_up_to_a_whole_one() -> None:
    """Where its siblings have ended before: a function may count on groups of one size."""
    sizes = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        sizes.append([len(group) for group in groups])
        return [await answered(args, group) for group in groups]

    played = await Batched(generate).play(assigned(1)[1:], Policy(says))
    assert [each.report.error for each in played] == [None]
    assert played[0].report.id.index == 1
    assert sizes == [[2]]


async def test_a_group_that_is_given_back_begins_anew() -> None:
    seen = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = [await answered(args, each) for each in data_source.get_samples(2)]
        seen.append([sample.response_length for group in groups for sample in group])
        if rollout_id == 0:
            data_source.add_samples([groups.pop()])
        return groups

    policy = Policy(says)
    played = await Batched(generate).play(assigned(2), policy)
    assert [each.report.reward for each in played] == [1.0, 1.0, 0.0, 0.0]
    assert len(seen) == 2
    sampled = sum(len(ids) for each in played for _, ids in trained(each))
    assert sampled < sum(len(ids) for _, ids in policy.asked)


async def test_an_episode_that_the_buffer_ends_leaves_the_others_alone() -> None:
    batched = Batched(generate_rollout)
    policy = Policy(says)
    policy.held = {number: anyio.Event() for number in range(4)}
    found = []

    async def one(assignment: Any) -> None:
        found.append(await batched.player.play(assignment, policy))

    async with batched.endpoint, anyio.create_task_group() as group:
        first, *others = assigned(2)
        scope = anyio.CancelScope()

        async def ended() -> None:
            with scope:
                await one(first)

        group.start_soon(ended)
        for each in others:
            group.start_soon(one, each)
        with anyio.fail_after(20):
            while len(policy.prompts) < 2:  # noqa: ASYNC110 - a policy tells nobody
                await anyio.sleep(0.01)
        scope.cancel()
        for event in policy.held.values():
            event.set()
    assert [each.report.error for each in found] == [None] * 3
