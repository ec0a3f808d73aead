"""The checker of rollouts plays policies that never stop: agents that raise at a limit of their own
are found before they train, and what a framework keeps for itself is no fault."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from agentrl import rollout
from agentrl.actors import rollout_contract
from agentrl.actors.rollout_contract import PROMISES, check_rollout
from agentrl.envs.check import harness
from agentrl.envs.check.harness import Finding
from agentrl.envs.check.subject import Subject
from agentrl.envs.registry import MADE_ENV
from agentrl.envs.rollout import Chat, Rollout
from tests.integration.test_rollout_contract import (
    ANY_TURN,
    HELLO,
    LEAVES_NOTHING,
    NEVER_STOPS,
    PLAYS,
    TASK,
    sound,
)
from tests.unit.rollout_ground import DOUBLE, made_of


class MaxTurnsExceeded(Exception):
    """As agents of `openai-agents` raise it."""


class GraphRecursionError(RecursionError):
    """As graphs of `langgraph` raise it."""


class ModelBehaviorError(Exception):
    """As agents of `openai-agents` raise it."""


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine holds the loop, and is slow: no test here is about that."""
    monkeypatch.setattr(harness, "HOLD_S", 30.0)
    monkeypatch.setattr(rollout_contract, "LIMIT_S", 120.0)


def tried(cls: type[Rollout], *promises: str) -> list[Finding]:
    """What is found of some promises, or of all."""
    kept = {name: PROMISES[name] for name in promises or PROMISES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_contract, "PROMISES", kept)
        return list(check_rollout(Subject(cls, {}, TASK), limit_s=1000.0))


async def openai_agent(task: dict[str, Any], chat: Chat) -> float:
    """Ten turns at most; a call of an unknown tool is the model's fault, and raises too."""
    messages: list[dict[str, Any]] = [*HELLO]
    for _ in range(10):
        said = await chat.complete(messages, [DOUBLE])
        messages.append(said)
        if not said.get("tool_calls"):
            return float(said["content"] == "42")
        for call in said["tool_calls"]:
            result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
            messages.append(result)
    raise MaxTurnsExceeded("Max turns (10) exceeded")


async def graph(task: dict[str, Any], chat: Chat) -> float:
    """A node for the model, a node for its tools, 25 steps in all."""
    messages: list[dict[str, Any]] = [*HELLO]
    for step in range(25):
        if step % 2 == 0:
            said = await chat.complete(messages, [DOUBLE])
            messages.append(said)
        elif not said.get("tool_calls"):
            return float(said["content"] == "42")
        else:
            for call in said["tool_calls"]:
                result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
                messages.append(result)
    raise GraphRecursionError("Recursion limit of 25 reached")


@pytest.mark.parametrize(
    ("solve", "said"),
    [
        (openai_agent, "openai_agent raised MaxTurnsExceeded: Max turns (10) exceeded"),
        (openai_agent, "with a policy that calls a tool for ever, after 10 answered calls"),
        (openai_agent, "`@rollout(..., failures={MaxTurnsExceeded: 0.0})`, or `policy_error=0.0`"),
        (graph, "graph raised GraphRecursionError: Recursion limit of 25 reached"),
        (graph, "after 13 answered calls: that is the policy's failure"),
        (graph, "its whole group is dropped untrained"),
    ],
)
def test_an_agent_whose_own_limit_of_turns_raises_is_found(solve: Any, said: str) -> None:
    found = {one.promise: one.problem for one in tried(made_of(solve))}
    problem = found.pop(NEVER_STOPS)
    assert said in str(problem)
    assert [*found.values()] == [None] * len(found), "the rest of it is sound"


def test_every_kind_of_exception_is_named_at_once() -> None:
    async def strict(task: dict[str, Any], chat: Chat) -> float:
        num_wrong = 0
        messages: list[dict[str, Any]] = [*HELLO]
        for _ in range(10):
            said = await chat.complete(messages, [DOUBLE])
            messages.append(said)
            if said.get("tool_calls"):
                arguments = json.loads(said["tool_calls"][0]["function"]["arguments"])
                num_wrong += not isinstance(arguments.get("number"), int)
                if num_wrong > 1:
                    raise ModelBehaviorError("it cannot call")
                call = said["tool_calls"][0]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
            elif said["content"] == "42":
                return 1.0
            else:
                messages.append({"role": "user", "content": "Call a tool."})
        raise MaxTurnsExceeded("Max turns (10) exceeded")

    (found,) = tried(made_of(strict), NEVER_STOPS)
    assert "failures={MaxTurnsExceeded: 0.0, ModelBehaviorError: 0.0}" in str(found.problem)


def test_an_agent_that_takes_its_limit_for_a_reward_is_sound() -> None:
    async def careful(task: dict[str, Any], chat: Chat) -> float:
        try:
            return await openai_agent(task, chat)
        except MaxTurnsExceeded:
            return 0.0

    assert [one.problem for one in tried(made_of(careful))] == [None] * len(PROMISES)


@pytest.mark.parametrize("worth", [{"failures": {MaxTurnsExceeded: 0.0}}, {"policy_error": 0.0}])
def test_an_agent_that_says_what_its_limit_is_worth_is_sound(worth: Any) -> None:
    async def told(task: dict[str, Any], chat: Chat) -> float:
        return await openai_agent(task, chat)

    made = vars(rollout(f"test/told-{next(iter(worth))}", **worth)(told))[MADE_ENV]
    assert tried(made) == [Finding(promise, None) for promise in PROMISES]


def test_a_mistake_that_counts_as_the_policys_failure_is_noted() -> None:
    async def hidden(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        return float(task["no_such"])

    made = vars(rollout("test/hidden", policy_error=0.0)(hidden))[MADE_ENV]
    (found,) = tried(made, PLAYS)
    assert found.problem is None
    assert "test/hidden raised KeyError: 'no_such' (" in str(found.note)
    assert "if the policy made no mistake there, that reward hides a bug" in str(found.note)


def test_an_agent_without_a_limit_is_ended_by_a_budget_and_is_sound() -> None:
    assert tried(made_of(sound), NEVER_STOPS) == [Finding(NEVER_STOPS, None)]


def test_a_tool_that_nobody_offered_is_called_too() -> None:
    async def trusting(task: dict[str, Any], chat: Chat) -> float:
        said = await chat.complete(HELLO, [DOUBLE])
        for call in said.get("tool_calls", ()):
            if call["function"]["name"] != "double":
                raise ModelBehaviorError(f"Tool {call['function']['name']} not found")
        return 0.0

    (found,) = tried(made_of(trusting), ANY_TURN)
    problem = str(found.problem)
    assert "ModelBehaviorError: Tool no_such_tool not found (" in problem
    assert "on a call of a tool that is not there" in problem
    assert "(by `@rollout(..., failures={ModelBehaviorError: 0.0})`)" in problem


async def pydantic_agent(task: dict[str, Any], chat: Chat) -> float:
    """A real agent, which raises when its model asks too often."""
    provider = OpenAIProvider(base_url=chat.base_url, api_key=chat.api_key)
    agent = Agent(OpenAIChatModel(chat.model, provider=provider), retries=100)

    @agent.tool_plain
    async def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    done = await agent.run(task["question"], usage_limits=UsageLimits(request_limit=5))
    return float(done.output == "42")


def test_a_real_agent_of_pydantic_ai_that_asks_too_often_is_found() -> None:
    (found,) = tried(made_of(pydantic_agent), NEVER_STOPS)
    problem = str(found.problem)
    assert "pydantic_agent raised UsageLimitExceeded:" in problem
    assert "after 5 answered calls" in problem
    assert "UsageLimitExceeded: 0.0" in problem


def test_an_agent_that_is_slow_with_each_call_is_not_blamed_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow(task: dict[str, Any], chat: Chat) -> float:
        messages = [*HELLO]
        while (said := await chat.complete(messages, [DOUBLE])).get("tool_calls"):
            messages.append(said)
            call = said["tool_calls"][0]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
            await anyio.sleep(3.0)
        return 1.0

    monkeypatch.setattr(rollout_contract, "LIMIT_S", 8.0)
    (found,) = tried(made_of(slow), NEVER_STOPS)
    assert found.problem is None
    assert "a policy that calls a tool for ever was ended after " in str(found.note)
    assert "calls, when 8 s were over" in str(found.note)


def test_an_agent_that_takes_its_time_is_played_as_often_as_there_is_time_for() -> None:
    async def patient(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO, [DOUBLE])
        started.append(time.monotonic())
        await anyio.sleep(0.5)
        return 1.0

    started: list[float] = []
    found = list(check_rollout(Subject(made_of(patient), {}, TASK), limit_s=4.0))
    assert [one.problem for one in found] == [None] * len(PROMISES)
    notes = {one.promise: one.note for one in found if one.note}
    assert "(--limit-s gives the check more than 4 s)" in notes[ANY_TURN]
    assert len(started) < 20


# ---- what a framework keeps ----------------------------------------------------------------------

FRAMEWORK = '''
import asyncio

_worker = None
every = []


async def _work(queue):
    """As the LoggingWorker of litellm: one for the loop, begun at first use."""
    while True:
        await queue.get()


def log():
    global _worker
    loop = asyncio.get_running_loop()
    if _worker is None or _worker[0] is not loop:
        _worker = loop, asyncio.create_task(_work(asyncio.Queue()))


def leak():
    every.append(asyncio.create_task(_work(asyncio.Queue())))
'''


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that stands where packages are installed."""
    from agentrl import user_traceback

    (tmp_path / "their_framework.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(user_traceback, "_OTHERS", (*user_traceback._OTHERS, str(tmp_path)))
    import importlib

    return importlib.import_module("their_framework")


def test_a_task_that_a_framework_began_at_its_first_use_is_no_fault(framework: Any) -> None:
    async def logged(task: dict[str, Any], chat: Chat) -> float:
        framework.log()
        await chat.complete(HELLO)
        return 1.0

    async def leaking(task: dict[str, Any], chat: Chat) -> float:
        framework.leak()
        await chat.complete(HELLO)
        return 1.0

    assert tried(made_of(logged), LEAVES_NOTHING) == [Finding(LEAVES_NOTHING, None)]
    (found,) = tried(made_of(leaking), LEAVES_NOTHING)
    assert "tasks go on after" in str(found.problem)
    assert "_work" in str(found.problem)


def test_a_task_of_the_users_own_that_lives_on_is_named() -> None:
    async def my_watcher() -> None:
        await asyncio.sleep(1000)

    async def watching(task: dict[str, Any], chat: Chat) -> float:
        if not any(watcher.get_loop() is asyncio.get_running_loop() for watcher in watchers):
            watchers.append(asyncio.create_task(my_watcher()))
        await chat.complete(HELLO)
        return 1.0

    watchers: list[asyncio.Task[None]] = []
    (found,) = tried(made_of(watching), LEAVES_NOTHING)
    assert "1 tasks go on after" in str(found.problem)
    assert "my_watcher" in str(found.problem)


def test_a_rollout_is_named_by_its_name() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        raise KeyError("no")

    named = vars(rollout("test/lite")(solve))[MADE_ENV]
    (found, *_) = tried(named)
    assert str(found.problem).startswith("test/lite raised KeyError: 'no' (")
