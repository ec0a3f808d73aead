"""Tasks as any iterable: each can be begun anywhere, and comes in the same order again."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.env import Env
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_eval_sets, open_source
from agentrl.errors import ConfigError
from agentrl.types import Task, TaskSource

pytestmark = pytest.mark.anyio

ROWS: list[dict[str, Any]] = [{"q": number} for number in range(5)]


def numbers(seed: int) -> Iterator[Task]:
    for number in itertools.count(seed):
        yield Task(f"n:{number}", {"q": number})


class Countdown:
    """Can be gone through, and is neither list nor generator."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS[::-1])


class Brings(Env):
    """An Env whose tasks are those of `--env-args`."""

    asked = 0

    @classmethod
    def train_tasks(cls, args: Any, *, seed: int) -> Any:
        cls.asked += 1
        return {
            "list": ROWS,
            "tuple": tuple(ROWS),
            "generator": (row for row in ROWS),
            "endless": numbers(seed),
            "object": Countdown(),
        }[args["as"]]

    @classmethod
    def eval_tasks(cls, args: Any) -> Any:
        return {
            "list": {"held": ROWS, "more": (Task(f"m:{n}", {}) for n in range(2))},
            "generator": {"held": itertools.count()},
        }.get(args["as"], {})


def source(kind: str, **settings: Any) -> TaskSource:
    Brings.asked = 0
    return open_source(RunConfig(env_args={"as": kind}, **settings), Brings)


async def taken(source: TaskSource, count: int, cursor: int = 0) -> list[Task]:
    found: list[Task] = []
    tasks = source.tasks(cursor)
    while len(found) < count and (task := await anext(tasks, None)) is not None:
        found.append(task)
    return found


@pytest.mark.parametrize("kind", ["list", "tuple", "generator", "object"])
async def test_tasks_end_with_what_gives_them(kind: str) -> None:
    found = await taken(source(kind), 100)
    rows = ROWS[::-1] if kind == "object" else ROWS
    assert found == [Task(str(index), row) for index, row in enumerate(rows)]


@pytest.mark.parametrize("kind", ["list", "tuple", "generator", "object", "endless"])
async def test_a_source_goes_on_anywhere_in_the_same_order(kind: str) -> None:
    given = source(kind, num_rollout=3, rollout_seed=7)
    all_of_it = await taken(given, 12)
    assert len(all_of_it) == 12
    for cursor in (0, 3, 11, 4, 5):
        assert await taken(given, 12 - cursor, cursor) == all_of_it[cursor:]
    assert await taken(source(kind, num_rollout=3, rollout_seed=7), 4, 8) == all_of_it[8:]
    if kind == "endless":
        assert all_of_it[0].id == "n:7"
    else:
        assert all_of_it[5:10] == all_of_it[:5]  # repeated, as rows of a file are


async def test_a_generator_that_is_read_once_is_asked_for_once() -> None:
    await taken(source("endless"), 1000)
    assert Brings.asked == 1


async def test_a_source_that_passes_over_many_tasks_lets_others_work() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        (task,) = await taken(source("endless", rollout_seed=0), 1, cursor=50_000)
        tasks.cancel_scope.cancel()
    assert task.id == "n:50000"
    assert turns >= 50


def test_evaluation_sets_are_any_iterables_that_end() -> None:
    sets = open_eval_sets(RunConfig(env_args={"as": "list"}), Brings)
    assert sets == {
        "held": [Task(str(index), row) for index, row in enumerate(ROWS)],
        "more": [Task("m:0", {}), Task("m:1", {})],
    }
    with pytest.raises(ConfigError, match=r"eval_tasks, held gave more than 1000000 tasks"):
        open_eval_sets(RunConfig(env_args={"as": "generator"}), Brings)


def test_a_list_that_is_scored_only_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentrl import Env\n\n\nclass Mine(Env):\n"
        "    @classmethod\n    def eval_tasks(cls, args):\n"
        "        return {'held': [{'q': 1}], 'more': [{'q': 2}]}\n"
    )
    config = RunConfig(eval_only=True)
    given = open_source(config, load_env(str(tmp_path / "mine.py")))
    rows = [task.row for task in anyio.run(taken, given, 9)]
    assert rows == [{"q": 1}, {"q": 2}]
    assert msgspec.json.encode(rows)
