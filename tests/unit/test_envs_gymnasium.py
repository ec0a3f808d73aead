"""Real Gymnasium environments as an `Env`: words in, words out, its own rewards and ends."""

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import gymnasium
import numpy as np
import pytest

from agentrl import AssistantTurn, load_env
from agentrl.envs.adapters.gymnasium import GymnasiumEnv
from agentrl.envs.check.contract import check_contract
from agentrl.envs.check.subject import Subject
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task, TaskSource

pytestmark = pytest.mark.anyio

LAKE: dict[str, Any] = {
    "id": "FrozenLake-v1",
    "make": {"render_mode": "ansi", "is_slippery": False},
    "actions": ["left", "down", "right", "up"],
}


def turn(text: str) -> AssistantTurn:
    return AssistantTurn(text, [], None, "stop", 0)


async def begun(env: GymnasiumEnv, seed: int = 3) -> str:
    (message,) = await env.reset(seed=0, task={"seed": seed})
    return message.content


class Held:
    """A call that has begun, and may end."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()


class Guarded(gymnasium.Env[str, str]):
    """Text in, text out; each call may hold until it is let go, and says so if two come at once."""

    def __init__(self, held: Held | None = None) -> None:
        self.observation_space = gymnasium.spaces.Text(40)
        self.action_space = gymnasium.spaces.Text(5, charset="abc")
        self.held = held
        self.inside = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"{(options or {}).get('hello', 'hello')} {self.np_random.integers(1000)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.inside += 1
        if self.held is not None:
            self.held.entered.set()
            assert self.held.let_go.wait(300)
        assert self.inside == 1
        self.inside -= 1
        return action * 2, np.float32(0.5), np.bool_(False), np.bool_(True), {}  # type: ignore[return-value]


class Cart(GymnasiumEnv):
    """A space of numbers, with hooks."""

    def read(self, text: str) -> Any:
        return np.array([float(text)], dtype=np.float32)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Guarded-v0", lambda **made: Guarded(**made), disable_env_checker=True)
    yield
    gymnasium.registry.pop("Guarded-v0")


async def test_a_lake_is_walked_in_words() -> None:
    env = GymnasiumEnv(**LAKE)
    prompt = await begun(env)
    assert prompt.startswith("You act in FrozenLake-v1. End each turn with your action: one of le")
    assert "SFFF\nFHFH\nFFFH\nHFFG" in prompt.replace("\x1b[41m", "").replace("\x1b[0m", "")
    steps = [await env.step(turn(f"I go {way}.")) for way in ["down", "Down!", "'RIGHT'", "right"]]
    assert [step.done for step in steps] == [False] * 4
    assert "(Right)" in steps[-1].messages[0].content
    await env.step(turn("down"))
    last = await env.step(turn("right"))
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    await env.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "leftright up to you",
        "dow n",
        "up, perhaps",
        "download",
        "upright",
        "1.up",
        "3",
        "x" * 9999,
    ],
)
async def test_what_names_no_action_is_told_and_changes_nothing(text: str) -> None:
    env = GymnasiumEnv(**LAKE)
    await begun(env)
    step = await env.step(turn(text))
    assert step.messages[0].content == (
        "that names no action; end your turn with one of left, down, right, up"
    )
    assert (step.reward, step.done, step.metrics) == (0.0, False, {"bad_actions": 1.0})
    assert env.gym.unwrapped.s == 0  # type: ignore[attr-defined]
    await env.close()


async def test_actions_without_names_are_numbers_and_the_longest_that_fits_is_meant() -> None:
    env = GymnasiumEnv(id="CartPole-v1")
    assert "one of 0, 1." in await begun(env)
    for text, action in [("1", 1), ("so: 0.", 0), ("action=1", 1)]:
        assert env.read(text) == action
    named = GymnasiumEnv(id="CartPole-v1", actions=["push", "do not push"])
    await begun(named)
    assert (named.read("I push"), named.read("I do not push")) == (0, 1)
    for one in (env, named):
        await one.close()


async def test_observations_of_numbers_are_told_as_numbers_and_a_time_limit_truncates() -> None:
    env = GymnasiumEnv(id="CartPole-v1", make={"max_episode_steps": 2}, prompt="Balance it.")
    prompt = await begun(env)
    head, _, numbers = prompt.partition("\n\n")
    assert head == "Balance it."
    assert len(numbers.strip("[]").split(",")) == 4
    assert not (await env.step(turn("0"))).done
    last = await env.step(turn("1"))
    assert (last.reward, last.terminated, last.truncated) == (1.0, False, True)
    await env.close()


async def test_text_spaces_are_spoken_and_rows_may_hold_options() -> None:
    env = GymnasiumEnv(id="Guarded-v0")
    (message,) = await env.reset(seed=5, task={"options": {"hello": "good day"}})
    assert "good day" in message.content
    assert "that is no action" in (await env.step(turn("xyz"))).messages[0].content
    step = await env.step(turn(" abc \n"))
    assert (step.messages[0].content, step.reward, step.truncated) == ("abcabc", 0.5, True)
    await env.close()


async def test_a_seed_is_that_of_the_task_and_else_of_the_episode() -> None:
    async def first(seed: int, task: dict[str, Any]) -> str:
        env = GymnasiumEnv(id="Guarded-v0")
        (message,) = await env.reset(seed=seed, task=task)
        await env.close()
        return message.content

    assert await first(1, {"seed": 9}) == await first(2, {"seed": 9})
    assert await first(1, {}) == await first(1, {}) != await first(2, {})


async def test_hooks_make_an_environment_of_other_spaces_playable() -> None:
    with pytest.raises(EnvError, match=r"actions of Pendulum-v1 are Box.*define `def read"):
        await begun(GymnasiumEnv(id="Pendulum-v1"))
    env = Cart(id="Pendulum-v1")
    await begun(env)
    assert (await env.step(turn("0.5"))).reward < 0
    await env.close()


@pytest.mark.parametrize("actions", [["a", "b", "c"], ["a"], ["a", "A"]])
async def test_every_action_needs_a_name_of_its_own(actions: list[str]) -> None:
    with pytest.raises(EnvError, match="CartPole-v1 has 2 actions; give each one name"):
        await begun(GymnasiumEnv(id="CartPole-v1", actions=actions))


def test_an_unknown_environment_is_refused_with_gymnasiums_own_words() -> None:
    with pytest.raises(ConfigError, match=r"has no environment 'FrozenLak-v1': .*FrozenLake"):
        GymnasiumEnv(id="FrozenLak-v1")


async def test_what_holds_does_not_hold_the_loop_and_close_waits_for_it() -> None:
    held = Held()
    env = GymnasiumEnv(id="Guarded-v0", make={"held": held})
    await begun(env)
    async with anyio.create_task_group() as group:
        group.start_soon(env.step, turn("abc"))
        await anyio.to_thread.run_sync(held.entered.wait)
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(env.close)
        await anyio.wait_all_tasks_blocked()
        assert env._gym is not None
        held.let_go.set()
    assert env._gym is None
    await env.close()


async def test_an_environment_that_was_closed_is_not_begun() -> None:
    env = GymnasiumEnv(**LAKE)
    await env.close()
    with pytest.raises(EnvError, match="was closed before it began"):
        await begun(env)


async def test_tasks_are_seeds_that_a_cursor_resumes() -> None:
    source: TaskSource = GymnasiumEnv.train_tasks(LAKE, seed=1)
    first: list[Task] = []
    async for task in source.tasks():
        first.append(task)
        if len(first) == 5:
            break
    async for task in source.tasks(3):
        assert task == first[3]
        break
    assert len({task.row["seed"] for task in first}) == 5
    assert first[0].id == "FrozenLake-v1:0"
    assert first[0].row != (await anext(GymnasiumEnv.train_tasks(LAKE, seed=2).tasks())).row


def test_it_keeps_what_an_env_promises() -> None:
    cls = load_env("gymnasium")
    ground = Subject(cls, LAKE, Task("t", {"seed": 3}))
    problems = {f.promise: f.problem for f in check_contract(ground) if f.problem is not None}
    assert not problems


# ---- environments of other packages -------------------------------------------------------------


async def test_an_id_may_name_the_module_that_registers_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lab_games.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Lab/Lake-v0', 'gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv')\n"
    )
    env = GymnasiumEnv(id="lab_games:Lab/Lake-v0", make={"render_mode": "ansi"})
    try:
        assert "You act in lab_games:Lab/Lake-v0" in await begun(env)
    finally:
        await env.close()
        gymnasium.registry.pop("Lab/Lake-v0")


def test_an_id_that_is_not_there_is_told_with_the_reason() -> None:
    for given, said in (
        ("nothing_there:X-v0", "cannot import nothing_there: ModuleNotFoundError"),
        ("gymnasium:X-v0", "Gymnasium has no environment 'gymnasium:X-v0'"),
        ("X-v0", "one of another package is `module:Id`"),
    ):
        with pytest.raises(ConfigError, match=said):
            GymnasiumEnv(id=given)
