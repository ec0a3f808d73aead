"""A reward model of the user's is made and called beside the event loop, and scores in batches."""

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.envs.messages import AssistantTurn
from agentrl.envs.single_turn import SingleTurnEnv

pytestmark = pytest.mark.anyio

MODELS = """
import threading

GO = threading.Event()
STARTED = threading.Event()
THREADS = set()
CALLS = []


class SlowToMake:
    def __init__(self):
        assert GO.wait(20), "the event loop stands still"
        THREADS.add(threading.get_ident())

    def compute_reward(self, prompts, responses):
        THREADS.add(threading.get_ident())
        return [len(response) for response in responses]


class SlowToCall:
    def compute_reward(self, prompts, responses):
        CALLS.append(list(responses))
        STARTED.set()
        assert GO.wait(20), "the event loop stands still"
        if "bad" in responses:
            raise ValueError("no score for bad")
        if "odd" in responses:
            return iter(()).__next__()
        return [len(response) for response in responses]


class Awaits:
    def compute_reward(self, prompts, responses):
        async def later():
            return [len(response) for response in responses]
        return later()


class OnTheLoop:
    async def compute_reward(self, prompts, responses):
        THREADS.add(threading.get_ident())
        return [len(response) for response in responses]
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)


def env_of(name: str) -> SingleTurnEnv:
    return SingleTurnEnv(reward=f"{Path.cwd()}/models.py:{name}")


def code_of(env: SingleTurnEnv) -> Any:
    """The user's module."""
    return __import__("sys").modules[env._own.__module__]


async def said(env: SingleTurnEnv, text: str) -> float:
    await env.reset(seed=0, task={"input": "2+2?", "label": "4"})
    return (await env.step(AssistantTurn(text, [], None, "stop", 0, ""))).reward


async def test_the_loop_goes_on_while_a_model_is_made(models: None) -> None:
    env = env_of("SlowToMake")
    code, worths = code_of(env), list[float]()

    async def ask() -> None:
        worths.append(await said(env, "four"))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        code.GO.set()
    assert worths == [4]
    assert await said(env, "ten") == 3
    assert len(code.THREADS) == 1  # made and called in one
    assert threading.get_ident() not in code.THREADS


async def asked_together(texts: list[str]) -> tuple[list[Any], list[list[str]]]:
    """What is said of `texts`, all of which came while the model scored "first"; and its calls."""
    env = env_of("SlowToCall")
    code = code_of(env)
    found: list[Any] = [None] * len(texts)

    async def ask(place: int, text: str) -> None:
        try:
            found[place] = await said(env_of("SlowToCall"), text)
        except Exception as error:
            found[place] = error

    async with anyio.create_task_group() as group:
        group.start_soon(said, env, "first")
        await anyio.to_thread.run_sync(code.STARTED.wait)
        for place, text in enumerate(texts):
            group.start_soon(ask, place, text)
            await anyio.wait_all_tasks_blocked()
        code.GO.set()
    return found, code.CALLS


async def test_answers_that_wait_for_a_call_are_scored_by_the_next_together(models: None) -> None:
    found, calls = await asked_together(["a", "bb", "ccc"])
    assert found == [1, 2, 3]
    assert calls == [["first"], ["a", "bb", "ccc"]]


async def test_an_answer_that_cannot_be_scored_fails_alone(models: None) -> None:
    found, calls = await asked_together(["a", "bad", "odd"])
    assert found[0] == 1
    assert "no score for bad" in str(found[1])
    assert "StopIteration" in str(found[2])
    assert calls == [["first"], ["a", "bad", "odd"], ["a"], ["bad"], ["odd"]]


async def test_what_is_no_longer_waited_for_is_not_scored(models: None) -> None:
    env = env_of("SlowToCall")
    code = code_of(env)
    async with anyio.create_task_group() as group:
        group.start_soon(said, env, "first")
        await anyio.to_thread.run_sync(code.STARTED.wait)
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(said, env_of("SlowToCall"), "late")
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        code.GO.set()
    assert await said(env, "next") == 4
    assert code.CALLS == [["first"], ["next"]]


@pytest.mark.parametrize("name", ["Awaits", "OnTheLoop"])
async def test_a_model_may_be_async(name: str, models: None) -> None:
    env = env_of(name)
    assert await said(env, "four") == 4
    if name == "OnTheLoop":
        assert list(code_of(env).THREADS) == [threading.get_ident()]
