"""A rehearsal: the Env is made, opens its first prompt and is closed, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.check.dry_reset import dry_reset
from agentrl.envs.check.preflight import preflight
from agentrl.envs.registry import load_env
from agentrl.errors import ConfigError
from agentrl.types import Task
from tests.unit.env_modules import RESET, SCORE, Write, env_source, refusal, write

__all__ = ["write"]


def made(write: Write, *methods: str) -> Any:
    config = write(env_source(*methods))
    return load_env(str(config.env))()


def test_the_env_is_tried_in_the_thread_that_imported_it(write: Write) -> None:
    """A worker has one thread for both, and some libraries count on it."""
    before = "import sqlite3\nDB = sqlite3.connect(':memory:')\n"
    reset = "async def reset(self, *, seed, task):\n    DB.execute('SELECT 1')\n"
    config = write(env_source(reset + "    return [Message.user('x')]", SCORE, before=before))
    assert len(preflight(config)) == 1


def test_a_try_closes_what_it_opened_and_has_the_tools_deadline(
    write: Write, tmp_path: Path
) -> None:
    reset = (
        "async def reset(self, *, seed, task):\n"
        "    pathlib.Path('opened').touch()\n"
        "    return [Message.user('x')]"
    )
    close = (
        "async def close(self):\n"
        "    pathlib.Path('opened').rename(f'closed-{self.tool_timeout_s:g}')"
    )
    preflight(write(env_source(reset, SCORE, close, before="import pathlib\n"), tool_timeout_s=7.0))
    assert (tmp_path / "closed-7").exists()


def test_a_try_leaves_the_task_as_it_was(write: Write) -> None:
    """An Env may hold its tasks in a table: the run will play this very one."""
    reset = "async def reset(self, *, seed, task):\n    return [Message.user(task['q'].pop())]"
    task = Task("1", {"q": ["x"]})
    assert dry_reset(made(write, reset, SCORE), task, seed=0) is None
    assert task.row == {"q": ["x"]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return task['q']",
            (
                "Calc.reset returned str '2 + 2'; return a list of messages, as in "
                "`return [Message.user(text)]`"
            ),
        ),
        ("return dict(task)", "Calc.reset returned dict {'q': '2 + 2'}; return a list"),
        ("if seed < 0:\n        return [1]", "Calc.reset returned nothing; return a list"),
        ("return []", "Calc.reset returned an empty list; a prompt needs at least one message"),
        (
            "return [{'role': 'user', 'content': 'x'}]",
            (
                "message 0 of the prompt that Calc.reset returned is dict {'role': 'user', "
                "'content': 'x'}; write `Message('user', ...)` in place of the dict"
            ),
        ),
        (
            "return [Message.user('x'), 'and more']",
            "message 1 of the prompt that Calc.reset returned is str 'and more'",
        ),
        ("return [Message.user('x')], {}", "message 0 of the prompt that Calc.reset returned is"),
        (
            "return asyncio.sleep(1)",
            "Calc.reset returned a coroutine (sleep) that nobody awaited: say `await` before it",
        ),
        (
            "return [Message.user(task['question'])]",
            (
                "Calc.reset raised KeyError: 'question' (calc.py:7) on the first task, "
                "rows.jsonl line 1, whose keys are ['q']"
            ),
        ),
        (
            "return [Message.user(7)]",
            (
                "Calc.reset refuses the first task, rows.jsonl line 1: EnvError: the content of "
                "a user message is int; it must be str (calc.py:7)"
            ),
        ),
        ("raise ValueError('no\\n  gold')", "raised ValueError: no gold (calc.py:7)"),
        ("exit(3)\n    return []", "raised SystemExit: 3 (calc.py:7)"),
        ("raise asyncio.CancelledError\n    return []", "raised CancelledError (calc.py:7)"),
        (
            "return [Message.user(helper())]",
            "raised ZeroDivisionError: division by zero (calc.py:5)",
        ),
        ("return json.loads('{')", "raised JSONDecodeError: Expecting property name enclosed in"),
        ("return json.loads('{')", "(char 1) (calc.py:7) on the first task"),
    ],
)
def test_a_reset_that_cannot_begin_an_episode_is_refused(
    write: Write, body: str, message: str
) -> None:
    reset = f"async def reset(self, *, seed, task):\n    {body}"
    before = "def helper():\n    return 1 / 0\n" if "helper" in body else ""
    reset = reset.replace("return json", "import json; return json")
    assert message in refusal(write(env_source(reset, SCORE, before=before)))


def test_a_close_that_raises_is_refused_and_one_after_a_failed_reset_hides_nothing(
    write: Write,
) -> None:
    close = "async def close(self):\n    await self.db.close()"
    assert (
        "Calc.close raised AttributeError: 'Calc' object has no attribute 'db' (calc.py:11) after "
        "a reset on rows.jsonl line 1" in refusal(write(env_source(RESET, SCORE, close)))
    )
    reset = "async def reset(self, *, seed, task):\n    raise ValueError('first')"
    other = write(env_source(reset, SCORE, close), file="other.py")
    assert "Calc.reset raised ValueError: first" in refusal(other)


def test_a_reset_that_holds_the_loop_is_refused_with_the_line_that_does(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    threading.Event().wait()\n    return []"
    env = made(write, reset, SCORE)
    with pytest.raises(ConfigError) as caught:
        dry_reset(env, Task("rows:1", {}), seed=0, limit_s=0.01)
    assert "Calc.reset held the event loop for more than 0.01 s (calc.py:7)" in str(caught.value)


def test_a_reset_that_is_slow_is_a_note_and_is_closed(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    await asyncio.Event().wait()\n    return []"
    close = "async def close(self):\n    self.closed = True"
    env = made(write, reset, SCORE, close)
    note = dry_reset(env, Task("rows:1", {}), seed=0, limit_s=0.01)
    assert note == "Calc.reset took more than 0.01 s: its prompt is unchecked"
    assert env.closed


def test_a_service_that_is_away_is_a_note(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    raise EngineError('the judge is away')"
    _, note = preflight(write(env_source(reset, SCORE)))
    assert note == "Calc.reset could not be tried: EngineError: the judge is away (calc.py:7)"


def test_an_env_that_needs_services_is_looked_at_and_not_played(write: Write) -> None:
    specs = (
        "@classmethod\ndef service_specs(cls, args):\n"
        "    from agentrl import ServiceSpec\n"
        "    return {'db': ServiceSpec('db', ['db'], '/health')}"
    )
    reset = "async def reset(self, *, seed, task):\n    raise KeyError(self.services['db'])"
    close = "async def close(self):\n    pathlib.Path('closed').touch()"
    source = env_source(reset, SCORE, specs, close, before="import pathlib\n")
    assert len(preflight(write(source))) == 1
    assert Path("closed").exists()
    other = write(env_source(reset.removeprefix("async "), SCORE, specs), file="other.py")
    assert "is a plain def" in refusal(other)


def test_an_error_that_ends_who_reads_it_is_told_by_its_class(write: Write) -> None:
    before = "class OddError(Exception):\n    def __str__(self):\n        raise SystemExit(3)\n"
    reset = "async def reset(self, *, seed, task):\n    raise OddError"
    said = refusal(write(env_source(reset, SCORE, before=before)))
    assert "reset raised OddError (its message cannot be read)" in said
