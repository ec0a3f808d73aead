"""A call of a function of `--rollout-function-path` that takes too long, or that nobody waits for,
is ended: it asks no engine, and neither holds up nor fails the episodes of later calls."""

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.report import PlayedEpisode
from agentrl.envs.slime_stand_in.async_utils import run
from tests.unit.batch_ground import Batched, answered, assigned
from tests.unit.rollout_ground import LIMITS, Policy
from tests.unit.test_batches import says

pytestmark = pytest.mark.anyio


def refusal_of(args: Any, group: list[Any]) -> str:
    """What the requests of a group are told; nothing where they are answered."""
    try:
        run(answered(args, group))
    except ExceptionGroup as failed:
        return str(failed.exceptions[0])
    return ""


async def play_beside(
    batched: Batched, assignments: Sequence[Any], policy: Policy
) -> list[PlayedEpisode]:
    """As `Batched.play`, in an endpoint that is open already."""
    found: list[PlayedEpisode] = []

    async def one(assignment: Any) -> None:
        found.append(await batched.player.play(assignment, policy))

    async with anyio.create_task_group() as group:
        for assignment in assignments:
            group.start_soon(one, assignment)
    return found


async def cancel_once(
    event: threading.Event, batched: Batched, assignments: Sequence[Any], policy: Policy
) -> None:
    """Play `assignments`, and cancel them all once `event` is set."""
    async with anyio.create_task_group() as group:
        group.start_soon(play_beside, batched, assignments, policy)
        assert await anyio.to_thread.run_sync(event.wait, 20)
        group.cancel_scope.cancel()


async def test_a_call_whose_episodes_are_all_cancelled_holds_up_no_other() -> None:
    took, goes_on, said = threading.Event(), threading.Event(), list[str]()
    over = threading.Event()

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(1)
        if rollout_id == 0:
            took.set()
            goes_on.wait(60)
            said.append(refusal_of(args, groups[0]))
            over.set()
        return [run(answered(args, group)) for group in groups]

    batched, policy = Batched(generate, batch_size=1), Policy(says)
    async with batched.endpoint:
        await cancel_once(took, batched, assigned(1), policy)
        try:
            with anyio.fail_after(20):
                played = await play_beside(batched, assigned(1, first=1), policy)
        finally:
            goes_on.set()
        assert await anyio.to_thread.run_sync(over.wait, 20)
    assert [each.report.error for each in played] == [None] * 2
    assert len(policy.asked) == 2
    assert "410" in said[0]


async def test_a_request_of_a_call_that_was_given_up_is_refused() -> None:
    goes_on, done, said = threading.Event(), threading.Event(), list[str]()

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(1)
        if rollout_id == 0:
            goes_on.wait(30)
            said.append(refusal_of(args, groups[0]))
            done.set()
            return groups
        goes_on.set()
        done.wait(20)
        return [run(answered(args, group)) for group in groups]

    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    policy = Policy(says)
    played = await Batched(generate, batch_size=1, limits=limits).play(assigned(2), policy)
    assert "410" in said[0]
    assert len(policy.asked) == 2
    assert [each.report.error for each in played[2:]] == [None] * 2


async def test_a_call_fails_no_episode_that_came_after_it_began() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    comes, is_there = threading.Event(), threading.Event()

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        if rollout_id == 0:
            begun.set()
            goes_on.wait(20)
            try:
                data_source.get_samples(1)
            finally:
                comes.set()
                is_there.wait(20)
        return [run(answered(args, group)) for group in data_source.get_samples(1)]

    batched, policy = Batched(generate, batch_size=1), Policy(says)

    async def is_offered() -> None:
        while not batched.desk._waiting:  # noqa: ASYNC110 - the desk tells its thread alone
            await anyio.sleep(0.01)
        is_there.set()

    async with batched.endpoint:
        await cancel_once(begun, batched, assigned(1), policy)
        goes_on.set()
        assert await anyio.to_thread.run_sync(comes.wait, 20)
        async with anyio.create_task_group() as group:
            group.start_soon(is_offered)
            played = await play_beside(batched, assigned(1, first=1), policy)
    assert [each.report.error for each in played] == [None] * 2
