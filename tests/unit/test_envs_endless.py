"""`env check` of an Env plays policies that never stop, and keeps to its time."""

import asyncio
import itertools
from typing import Any

import anyio
import pytest

from agentrl.envs.check.contract import PROMISES, check_contract
from agentrl.envs.check.harness import Finding, Standing
from agentrl.envs.check.leftovers import tasks_left
from agentrl.envs.check.share import Share, shares
from agentrl.envs.check.subject import Subject
from agentrl.envs.check.turns import endless, turns
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from tests.unit.test_envs_contract import TASK, Sound, broken

pytestmark = pytest.mark.anyio

ENDLESS = "a policy that never stops is answered too"


class Patient(Sound):
    """Ends at an answer of 42 only, however long that takes."""

    num_turns = 0

    async def step(self, turn: AssistantTurn) -> Step:
        self.num_turns += 1
        self.judge(turn)
        said = Message.user("Go on.")
        return Step(terminated=True) if turn.text == "42" else Step(messages=[said])

    def judge(self, turn: AssistantTurn) -> None:
        pass

    async def snapshot(self) -> bytes:
        return str(self.num_turns).encode()

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        self.num_turns = int(state)


class Limited(Patient):
    def judge(self, turn: AssistantTurn) -> None:
        if self.num_turns > 10:
            raise RuntimeError("ten turns are enough")


class Nagging(Patient):
    """Insists on a call, three times."""

    num_refused = 0

    def judge(self, turn: AssistantTurn) -> None:
        self.num_refused += not turn.tool_calls
        if self.num_refused > 3:
            raise RuntimeError("it never calls a tool")


class Fussy(Patient):
    """Takes one malformed turn, and no second."""

    num_malformed = 0

    def judge(self, turn: AssistantTurn) -> None:
        self.num_malformed += turn.parse_error is not None
        if self.num_malformed > 1:
            raise RuntimeError("it cannot even call")


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Limited, "ten turns are enough (tests/unit/test_envs_endless.py:"),
        (Limited, "at turn 11 of a policy that calls tools for ever: that is the policy's failure"),
        (Nagging, "at turn 4 of a policy that never calls a tool"),
        (Fussy, "of a policy that answers garbage"),
        (Limited, "end with `Step(truncated=True)`"),
    ],
)
def test_an_env_that_raises_when_a_policy_never_stops_is_named(cls: type[Env], said: str) -> None:
    assert broken(Patient) == {}
    ((promise, problem),) = broken(cls).items()
    assert promise == ENDLESS
    assert said in problem


def test_every_tool_is_called_by_a_policy_that_calls_for_ever() -> None:
    (_, calls), *_ = endless(Sound.tools)
    assert {turn.tool_calls[0].name for turn in calls} == {*Sound.tools}


def test_what_is_cut_in_the_name_of_a_turn_is_marked() -> None:
    names = [name for name, _ in turns({})]
    (nines,) = [name for name in names if "'9999" in name]
    assert nines == f"the answer '{'9' * 40}'... (5000 characters)"
    assert "the answer 'nan'" in names


# ---- time ----------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_time_that_one_promise_does_not_need_is_left_to_those_after_it() -> None:
    clock = Clock()

    def over_at(share: Share, now_s: float) -> bool:
        clock.now_s = now_s
        return share.is_over

    parts = shares(3, 30.0, clock)
    first = next(parts)
    assert (over_at(first, 9.9), over_at(first, 10.0)) == (False, True)
    clock.now_s = 2.0
    second = next(parts)
    assert (over_at(second, 15.9), over_at(second, 16.0)) == (False, True)
    clock.now_s = 40.0
    assert next(parts).is_over, "nothing is left for the third"


def test_what_is_not_begun_in_time_is_named_and_counted() -> None:
    clock = Clock()
    share = Share(10.0, 60.0, clock)
    begun = []
    for name, number in share.within([(f"turn {n}", n) for n in range(6)]):
        begun.append((name, number))
        clock.now_s += 6.0
    assert begun == [("turn 0", 0), ("turn 1", 1)]
    assert share.note == (
        "left out 4 of 6, turn 2, turn 3, turn 4, ...: its time was over "
        "(--limit-s gives the check more than 60 s)"
    )
    assert Share(10.0, 60.0, clock).note is None


def test_an_env_that_is_slow_to_begin_is_tried_for_as_long_as_there_is_time() -> None:
    class Slow(Sound):
        num_made = 0

        async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
            type(self).num_made += 1
            await anyio.sleep(0.1)
            return await super().reset(seed=seed, task=task)

    found = list(check_contract(Subject(Slow, {}, TASK), limit_s=3.0))
    assert [finding.problem for finding in found] == [None] * len(found)
    notes = [finding.note for finding in found if finding.note]
    assert notes
    assert all("its time was over (--limit-s gives the check more than 3 s)" in n for n in notes)
    assert Slow.num_made < 60, "in all there are hundreds"


def test_a_check_without_time_tries_nothing_and_says_so() -> None:
    found = list(check_contract(Subject(Sound, {}, TASK), limit_s=0.0))
    assert len(found) > 5
    assert all(finding.note is not None for finding in found)
    assert all(str(finding.note).startswith("not tried: its time was over") for finding in found)


def test_where_a_check_stands_is_announced_before_each_promise() -> None:
    said: list[Standing | Finding] = []
    said.extend(check_contract(Subject(Sound, {}, TASK), said.append))
    standings = [one for one in said[::2] if isinstance(one, Standing)]
    total = len(PROMISES) - 1  # it declares nothing of its reward
    assert [one.number for one in standings] == [*range(1, total + 1)]
    assert {one.total for one in standings} == {total}
    assert [one.promise for one in standings] == [one.promise for one in said[1::2]]


# ---- tasks that go on ----------------------------------------------------------------------------


async def test_a_task_that_a_framework_began_once_is_no_fault() -> None:
    """Its coroutine is the standard library's here: nobody's code of this file."""
    kept: list[asyncio.Task[Any]] = []

    async def episode() -> None:
        if not kept:
            kept.append(asyncio.create_task(asyncio.sleep(1000)))

    assert await tasks_left(episode, 0.2) == []
    kept.pop().cancel()


async def test_a_task_of_each_episode_is_a_fault_and_so_is_one_of_the_users_own() -> None:
    async def my_watcher() -> None:
        await asyncio.sleep(1000)

    kept: list[asyncio.Task[Any]] = []

    async def every() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(1000)))

    async def own() -> None:
        if not any(task.get_name() == "mine" for task in kept):
            kept.append(asyncio.create_task(my_watcher(), name="mine"))

    assert await tasks_left(every, 0.2) == ["sleep"]
    assert await tasks_left(own, 0.2) == ["mine"]
    for task in kept:
        task.cancel()


async def test_a_task_that_soon_ends_is_waited_for() -> None:
    count = itertools.count()

    async def episode() -> None:
        asyncio.create_task(asyncio.sleep(0.2), name=f"brief {next(count)}")  # noqa: RUF006

    assert await tasks_left(episode, 30.0) == []
