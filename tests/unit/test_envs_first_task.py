"""Tasks are looked at before anything starts: what a class brings, its source, the first rows."""

import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.envs.check.dry_reset import first_task
from agentrl.envs.check.preflight import preflight
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task
from tests.unit.env_modules import RESET, SCORE, Write, env_source, refusal, write

__all__ = ["write"]

pytestmark = pytest.mark.slow


OWN_SOURCE = """
@classmethod
def train_tasks(cls, args, *, seed):
    from agentrl.types import Task
    class Source:
        async def tasks(self, cursor=0):
            yield Task("a", {"q": "2"})
    return Source()
"""


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "def train_tasks(cls, args, *, seed):\n    return [1]",
            "Calc.train_tasks gave 1 as task 0; give Task(id, row), or the row",
        ),
        (
            "def train_tasks(cls, args, *, seed):\n    return 'rows.jsonl'",
            "Calc.train_tasks returned 'rows.jsonl'; return tasks, as a list or a generator of",
        ),
        ("def train_tasks(cls, args, *, seed):\n    return []", "train_tasks gave no tasks"),
        (
            "def train_tasks(cls, args, *, seed):\n    yield args['split']",
            "Calc.train_tasks raised KeyError: 'split' (calc.py:12)",
        ),
        (
            "def train_tasks(cls):\n    return []",
            "write `def train_tasks(cls, args, *, seed):`",
        ),
        (
            "def train_tasks(cls, args, *, seed):\n    return args['split']",
            "Calc.train_tasks raised KeyError: 'split' (calc.py:12)",
        ),
        (
            "def eval_tasks(cls, args):\n    return [1]",
            "Calc.eval_tasks returned [1]; return a dict of tasks by name",
        ),
        (
            "def eval_tasks(cls, args):\n    return {'a': [{'q': 1}, 'x']}",
            "Calc.eval_tasks, a gave 'x' as task 1; give Task(id, row), or the row",
        ),
        (
            "def eval_tasks(cls):\n    return {}",
            "write `def eval_tasks(cls, args):`",
        ),
        ("def eval_tasks(cls, args):\n    return 1 / 0", "raised ZeroDivisionError"),
        (
            "def service_specs(cls, args):\n    return ['db']",
            "Calc.service_specs returned ['db']; return a dict of ServiceSpec by name",
        ),
        ("def service_specs(cls, args):\n    return 1 / 0", "raised ZeroDivisionError"),
        ("def train_tasks(cls, args, *, seed):\n    return None", "brings no tasks of its own"),
    ],
)
def test_what_a_class_brings_is_checked(write: Write, method: str, message: str) -> None:
    source = env_source(RESET, SCORE, f"@classmethod\n{method}")
    if "train_tasks" not in method:
        source += textwrap.indent(OWN_SOURCE, "    ")
    assert message in refusal(write(source, rows=None))


class ListSource:
    async def tasks(self, cursor: int = 0) -> list[Task]:
        return [Task("a", {})]


class RowSource:
    async def tasks(self, cursor: int = 0) -> Any:
        yield {"q": 1}


class RowlessSource:
    async def tasks(self, cursor: int = 0) -> Any:
        row: Any = ["q"]
        yield Task("a", row)


class EmptySource:
    async def tasks(self, cursor: int = 0) -> Any:
        for task in list[Task]():
            yield task


class BrokenSource:
    async def tasks(self, cursor: int = 0) -> Any:
        yield 1 / 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ListSource(), "ListSource.tasks returned a coroutine .* it must be an async generator"),
        (RowSource(), r"RowSource.tasks gave dict \{'q': 1\}; it must `yield Task\(id, row\)`"),
        (RowlessSource(), r"RowlessSource.tasks gave Task .*; it must `yield Task\(id, row\)`"),
        (EmptySource(), "EmptySource.tasks gave no task"),
        (BrokenSource(), r"BrokenSource.tasks raised ZeroDivisionError: .* \(\S+\.py:\d+\)"),
    ],
)
def test_a_task_source_that_gives_no_task_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        first_task(source)


def test_a_task_that_does_not_come_in_time_is_no_mistake() -> None:
    class Slow:
        async def tasks(self, cursor: int = 0) -> Any:
            await anyio.sleep_forever()
            yield Task("a", {})

    assert first_task(Slow(), limit_s=0.01) is None


@pytest.mark.parametrize("number", [2, 25_001])
def test_a_malformed_row_is_named_before_anything_starts(write: Write, number: int) -> None:
    rows = ['{"q": "x"}'] * 25_005
    rows[number - 1] = '{"q": oops}'
    config = write(env_source(RESET, SCORE), rows="\n".join(rows), rollout_shuffle=True)
    with pytest.raises(DataError, match=rf"rows.jsonl line {number} is not a JSON object"):
        preflight(config)


def test_rows_for_single_turn_that_lack_the_label_name_the_flag(write: Write) -> None:
    said = refusal(write(env_source(RESET, SCORE), env="single-turn", rows='{"input": "x"}\n'))
    assert "the task has no 'label'; its keys are ['input']; name one with --label-key" in said


def test_a_run_of_demonstrations_checks_its_rows_and_plays_no_env(write: Write) -> None:
    rows = '{"messages": []}\n{"text": "x"}\n'
    config = write(
        env_source(), env="single-turn", rows=rows, loss_type="sft_loss", input_key="messages"
    )
    with pytest.raises(DataError, match=r"line 2 lacks \['messages'\]"):
        preflight(config)
    Path("rows.jsonl").write_text('{"messages": []}\n')
    assert preflight(config) == []


def first_row(value: str) -> str:
    """A source that gives one task, whose row has `value` in it."""
    return (
        "@classmethod\ndef train_tasks(cls, args, *, seed):\n"
        "    from agentrl.types import Task\n"
        f"    return [Task('first', {{'q': 'x', 'at': [{value}]}})]"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("(1, 2)", "['at'][0] is tuple (1, 2), and arrives as list [1, 2]"),
        ("{3}", "['at'][0] is set {3}, and arrives as list [3]"),
        (
            "__import__('datetime').date(2026, 1, 2)",
            "['at'][0] is date datetime.date(2026, 1, 2), and arrives as str '2026-01-02'",
        ),
        ("{'deep': {4: 5.0}}", "the key ['at'][0]['deep'][4] is int 4, and arrives as str '4'"),
        ("float('nan')", "['at'][0] is float nan, and arrives as NoneType None"),
        ("{'deep': {'4': 5.0, 'n': None, 'b': True, 'l': [[], {}]}}", None),
    ],
)
def test_a_row_that_is_not_the_same_when_it_arrives_is_told_by_its_task(
    write: Write, value: str, said: str | None
) -> None:
    reset = "async def reset(self, *, seed, task):\n    return [Message.user(str(task['at'][0]))]"
    notes = preflight(write(env_source(reset, SCORE, first_row(value)), rows=None))
    told = [note for note in notes if "is not the same when it arrives" in note]
    assert len(told) == (said is not None)
    assert (
        said is None or f"the row of task first is not the same when it arrives: {said}" in told[0]
    )


def test_the_env_is_tried_on_the_row_as_it_arrives(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    day = task['at'][0].isoformat()"
    reset += "\n    return [Message.user(day)]"
    source = env_source(reset, SCORE, first_row("__import__('datetime').date(2026, 1, 2)"))
    assert "raised AttributeError: 'str' object has no attribute 'isoformat'" in refusal(
        write(source, rows=None)
    )


def test_a_row_that_cannot_be_sent_is_refused_by_its_task(write: Write) -> None:
    with pytest.raises(DataError, match=r"the row of task first cannot be sent: .*object"):
        preflight(write(env_source(RESET, SCORE, first_row("object()")), rows=None))
