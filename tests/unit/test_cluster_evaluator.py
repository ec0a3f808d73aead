"""When evaluations are due, what is asked for, and under which step a score goes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.requests import Requests
from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.types import Task
from agentrl.wire.messages import Evaluate, Event

pytestmark = pytest.mark.anyio

SETS = {"heldout": [Task("a", {}), Task("b", {})], "hard": [Task("c", {})]}


class Site:
    """A buffer that notes what it is asked and a recorder that notes what it is told."""

    def __init__(self, own: Sequence[EvalSet] = (), **flags: Any) -> None:
        self.state = RunState()
        self.asked: list[Evaluate] = []
        self.scores: list[tuple[int, str]] = []
        self.greedy: list[str] = []
        self.logs: list[tuple[int, dict[str, float]]] = []
        config = RunConfig(**flags)
        self.requests = Requests(cast(Any, self), self.state)
        self.evaluator = Evaluator(config, SETS, self.requests, self.state, cast(Any, self), own)

    async def deliver(self, order: Evaluate) -> None:
        self.asked.append(order)

    def note(self, text: str) -> None: ...

    def logged(self, step: int, figures: dict[str, float], told: str) -> None:
        self.logs.append((step, figures))

    def evaluation(
        self, step: int, data: dict[str, Any], *, is_greedy: bool, is_shown: bool
    ) -> None:
        self.scores.append((step, data["id"]))
        self.greedy += [data["id"]] * is_greedy

    @property
    def ids(self) -> list[str]:
        """Of the orders since the last look."""
        ids = [order.id for order in self.asked]
        self.asked.clear()
        return ids

    async def publish(self, iteration: int) -> None:
        data = {"version": 100 + iteration, "iteration": iteration}
        self.state.apply(Event("published", data))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()

    async def answer(self, *ids: str) -> None:
        for id in ids:
            self.state.apply(Event("evaluation", {"id": id}))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def training(self, interval: int) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.evaluator.evaluate_beside, interval)
            await anyio.lowlevel.checkpoint()
            yield tasks
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("mode", "beside", "pinned"),
    [("beside", False, True), ("beside", True, False), ("pinned", True, True)],
)
async def test_an_order_says_what_it_is_played_beside_and_whether_pushes_wait(
    mode: str, beside: bool, pinned: bool
) -> None:
    site = Site(eval_mode=mode, n_samples_per_eval_prompt=3, eval_temperature=0.5)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: site.evaluator.evaluate(beside=beside))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    order = site.asked[0]
    assert (order.beside, order.pinned) == (beside, pinned)
    assert (order.name, order.tasks, order.num_samples) == ("heldout", SETS["heldout"], 3)
    assert order.sampling.temperature == 0.5


async def test_a_call_of_a_function_is_one_order_whose_sets_are_recorded_at_its_step() -> None:
    site = Site(eval_function_path="mine.py", n_samples_per_eval_prompt=3)
    site.evaluator._sets = {"eval-function": [Task("eval-function", {"rollout_id": 0})]}
    async with site.training(2):
        await site.publish(2)
        (order,) = site.asked
        assert (order.num_samples, order.tasks[0].row) == (1, {"rollout_id": 2})
        assert order.is_call
        sets = [{"id": "a"}, {"id": "b"}]
        told = {"id": order.id, "sets": sets, "figures": {"speed": 7.0}}
        site.state.apply(Event("evaluation", told))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    assert site.scores == [(2, "a"), (2, "b")]
    assert site.logs == [(2, {"speed": 7.0})]


async def test_all_sets_are_asked_for_before_the_first_has_ended() -> None:
    site = Site()
    async with site.training(2):
        await site.publish(2)
        assert site.ids == ["heldout@2-beside", "hard@2-beside"]
        await site.answer("hard@2-beside")
        assert site.scores == []
        await site.answer("heldout@2-beside")
        assert site.scores == [(2, "heldout@2-beside"), (2, "hard@2-beside")]


@pytest.mark.parametrize(("own", "greedy"), [(0.0, ["hard@2-beside"]), (None, []), (0.7, [])])
async def test_a_score_says_whether_its_own_set_was_greedy(
    own: float | None, greedy: list[str]
) -> None:
    site = Site([EvalSet("hard", RunConfig(eval_temperature=own))], eval_temperature=0.7)
    async with site.training(2):
        await site.publish(2)
        await site.answer("heldout@2-beside", "hard@2-beside")
    assert site.greedy == greedy


async def test_the_first_push_after_each_interval_is_evaluated() -> None:
    """Pushes come every third iteration, evaluations every fourth."""
    site, due = Site(), list[int]()
    async with site.training(4):
        for iteration in range(0, 22, 3):
            await site.publish(iteration)
            if ids := site.ids:
                due.append(iteration)
                await site.answer(*ids)
    assert due == [6, 9, 12, 18, 21]


async def test_what_comes_due_while_another_is_played_follows_at_once() -> None:
    site = Site()
    async with site.training(1):
        await site.publish(1)
        first = site.ids
        await site.publish(2)
        await site.publish(3)
        assert site.ids == []
        await site.answer(*first)
        assert site.ids == ["heldout@3-beside", "hard@3-beside"]


async def test_a_run_that_goes_on_begins_where_it_was() -> None:
    site = Site()
    await site.publish(6)
    async with site.training(4):
        await site.publish(7)
        assert site.ids == []
        await site.publish(8)
        assert site.ids == ["heldout@8-beside", "hard@8-beside"]


async def test_the_last_weights_are_left_to_the_evaluation_that_nothing_is_beside() -> None:
    site = Site()
    with anyio.fail_after(300):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(site.evaluator.evaluate_beside, 1)
            site.state.apply(Event("lease", {"number": 4, "last": False}))
            await site.publish(4)
            await site.answer(*site.ids)
            site.state.apply(Event("lease", {"number": 5, "last": True}))
            await site.publish(5)
    assert site.asked == []


async def test_a_buffer_that_restarted_is_asked_again_for_what_it_owes() -> None:
    site = Site()
    async with site.training(1):
        await site.publish(1)
        await site.answer("heldout@1-beside")
        site.asked.clear()
        await site.requests.ask_again()
        assert site.ids == ["hard@1-beside"]


@pytest.mark.parametrize("learner_done", [False, True])
async def test_an_evaluation_apart_holds_no_push_and_is_of_the_step_that_is_told(
    learner_done: bool,
) -> None:
    site = Site(eval_mode="apart")
    site.state.learner_done, site.state.iteration = learner_done, 9
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(site.evaluator.evaluate_apart, 4)
        await anyio.lowlevel.checkpoint()
        orders = list(site.asked)
        await site.answer("heldout@4-apart", "hard@4-apart")
    assert [order.id for order in orders] == ["heldout@4-apart", "hard@4-apart"]
    assert {(order.beside, order.pinned) for order in orders} == {(not learner_done, False)}
    assert site.scores == [(4, "heldout@4-apart"), (4, "hard@4-apart")]
