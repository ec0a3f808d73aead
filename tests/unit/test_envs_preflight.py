"""preflight: what users get wrong in an Env or its data is told before anything starts."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.preflight import ROWS, preflight
from agentrl.envs.registry import load_env
from agentrl.envs.rehearsal import first_task, rehearse
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task

RESET = 'async def reset(self, *, seed, task):\n    return [Message.user(task["q"])]'
SCORE = "async def score(self, text):\n    return 1.0"
Write = Callable[..., RunConfig]


def env_source(*methods: str, before: str = "") -> str:
    """A module with one Env `Calc` of these methods."""
    body = textwrap.indent("\n".join(methods) or "pass", "    ")
    head = "import asyncio, threading\nfrom agentrl import Env, Message, Step, tool\n"
    return f"{head}from agentrl.errors import EngineError\n{before}\nclass Calc(Env):\n{body}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module and rows.jsonl into the current directory; returns a run of them."""
    monkeypatch.chdir(tmp_path)

    def write(
        source: str,
        *,
        rows: str | None = '{"q": "2 + 2"}\n',
        file: str = "calc.py",
        **fields: Any,
    ) -> RunConfig:
        (tmp_path / file).write_text(source)
        if rows is not None:
            (tmp_path / "rows.jsonl").write_text(rows)
            fields = {"prompt_data": "rows.jsonl"} | fields
        return RunConfig(**({"env": f"{file}:Calc"} | fields))

    return write


def refusal(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(config)
    return str(caught.value)


# ---- what passes --------------------------------------------------------------------------------


def test_a_good_env_passes_and_its_tools_are_named(write: Write) -> None:
    look = '@tool\nasync def look(self, query: str, top: int = 1) -> str:\n    """Look."""'
    assert preflight(write(env_source(RESET, SCORE, look + '\n    return "x"'))) == [
        "environment Calc; tools of the model: look(query, top)"
    ]


def test_an_env_without_tools_is_told_so_since_a_forgotten_decorator_looks_like_that(
    write: Write,
) -> None:
    (note,) = preflight(write(env_source(RESET, SCORE)))
    assert "none (`@tool` above a method makes it one)" in note


@pytest.mark.parametrize(
    "methods",
    [
        (RESET, "async def step(self, turn):\n    return Step(reward=self.score(1, 2))",
         "def score(self, one, two):\n    return one / two"),
        (RESET, "async def step(self, turn):\n    return await super().step(turn)", SCORE),
        ("async def reset(self, seed, task):\n    return (Message.user('x'),)", SCORE),
        ("async def reset(self, **given):\n    return [Message.user('x')]", SCORE),
        (RESET, "@staticmethod\nasync def score(text):\n    return len(text)"),
        (RESET, "async def score(self, text):\n    raise KeyError(text)"),
        (RESET, "async def score(self, text):\n    def f():\n        return None\n    return 1"),
        (RESET, "async def score(self, text):\n    return True"),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_works_in_a_run_is_not_refused(write: Write, methods: tuple[str, ...]) -> None:
    assert len(preflight(write(env_source(*methods)))) == 1


def test_a_decorated_method_is_what_it_decorates(write: Write) -> None:
    before = (
        "import functools\n"
        "def twice(fn):\n"
        "    @functools.wraps(fn)\n"
        "    def wrapped(self, text):\n"
        "        return fn(self, text)\n"
        "    return wrapped\n"
    )
    assert len(preflight(write(env_source(RESET, f"@twice\n{SCORE}", before=before)))) == 1


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
    assert rehearse(made(write, reset, SCORE), task, seed=0) is None
    assert task.row == {"q": ["x"]}


# ---- the class ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            (RESET.removeprefix("async "), SCORE),
            "Calc.reset (calc.py:6) is a plain def; write `async def reset(self, *, seed, task):`",
        ),
        (
            (RESET, SCORE.removeprefix("async ")),
            "Calc.score (calc.py:8) is a plain def; write `async def score(self, text):`",
        ),
        (
            (RESET, "def step(self, turn):\n    return Step()"),
            "Calc.step (calc.py:8) is a plain def; write `async def step(self, turn):`",
        ),
        (
            (RESET, SCORE, "def close(self):\n    self.x = 1"),
            "Calc.close (calc.py:10) is a plain def; write `async def close(self):`",
        ),
        (
            (RESET,),
            (
                "Calc has neither score nor step, so nothing would ever be rewarded (it has "
                "reset); write `async def score(self, text):` and return a number"
            ),
        ),
        (
            (RESET, "async def reward(self, text):\n    return 1.0"),
            "(it has reset, reward); write `async def score(self, text):`",
        ),
        ((SCORE,), "Calc has no reset, which begins an episode (it has score); write `async def"),
        ((), "(it has no methods)"),
        (
            ("async def reset(self, task):\n    return [Message.user(task['q'])]", SCORE),
            (
                "Calc.reset (calc.py:6) takes (self, task), and the framework cannot call that "
                "(got an unexpected keyword argument 'seed'); write "
                "`async def reset(self, *, seed, task):`"
            ),
        ),
        (
            ("async def reset(self, seed, task, /):\n    return [Message.user('x')]", SCORE),
            "write `async def reset(self, *, seed, task):`",
        ),
        (
            (RESET, "async def score(text):\n    return 1.0"),
            "Calc.score (calc.py:8) takes (text), and the framework cannot call that",
        ),
        (
            (RESET, "async def score(self, text, gold):\n    return 1.0"),
            "missing a required argument: 'gold'",
        ),
        (
            (RESET, "async def step(self):\n    return Step()"),
            "write `async def step(self, turn):`",
        ),
        (
            ("async def reset(self, *, seed, task):\n    yield [Message.user('x')]", SCORE),
            "Calc.reset (calc.py:6) is a generator; use `return` in it, not `yield`",
        ),
        (
            (RESET, '@tool\nasync def score(self, text: str) -> str:\n    """S."""\n    return ""'),
            "Calc.score is a tool; the framework calls it, not the model; drop `@tool`",
        ),
        ((RESET, "score = 1.0"), "Calc.score is 1.0, not a method"),
        (
            (RESET, "async def score(self, text):\n    self.hit = True"),
            "Calc.score (calc.py:8) has no `return`; return a number",
        ),
        (
            (RESET, "async def score(self, text):\n    if not text:\n        return\n    return 1"),
            "Calc.score (calc.py:10) says `return`; return a number",
        ),
        (
            (RESET, "async def score(self, text):\n    return {'reward': 1.0}"),
            "says `return {'reward': 1.0}`; return a number",
        ),
        (
            (RESET, "async def score(self, text):\n    return 1.0, 'good'"),
            "says `return (1.0, 'good')`; return a number",
        ),
        (
            (RESET, "async def step(self, turn):\n    return [], 0.0, True, {}"),
            (
                "Calc.step (calc.py:9) says `return ([], 0.0, True, {})`; return a Step, as in "
                "`return Step(messages=[...], reward=0.0, terminated=False)`"
            ),
        ),
        (
            ("async def reset(self, *, seed, task):\n    return f'{task}'", SCORE),
            (
                "Calc.reset (calc.py:7) says `return f'{task}'`; return a list of messages, as in "
                "`return [Message.user(text)]`"
            ),
        ),
        (
            (RESET, SCORE, "def service_specs(self, args):\n    return {}"),
            "Calc.service_specs (calc.py:10) is no class method; write `@classmethod` above it",
        ),
    ],
)
def test_a_class_that_cannot_work_is_refused_with_what_to_write(
    write: Write, methods: tuple[str, ...], message: str
) -> None:
    assert message in refusal(write(env_source(*methods)))


# ---- making it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "args", "message"),
    [
        (
            "def __init__(self, *, gold):\n    super().__init__()",
            {},
            (
                "Calc cannot be made with --env-args {}: TypeError: Calc.__init__() missing 1 "
                "required keyword-only argument: 'gold'; it takes (*, gold)"
            ),
        ),
        (
            "def __init__(self, *, gold=1):\n    super().__init__()",
            {"golf": 2},
            "--env-args {'golf': 2}: TypeError: Calc.__init__() got an unexpected keyword argument",
        ),
        (
            "def __init__(self):\n    self.db = open('no.db')",
            {},
            "FileNotFoundError: [Errno 2] No such file or directory: 'no.db' (calc.py:7)",
        ),
        ("def __init__(self):\n    raise SystemExit('bye')", {}, "SystemExit: bye (calc.py:7)"),
        ("", {"n": 1}, "Calc takes no --env-args; it was given ['n']"),
    ],
)
def test_an_env_that_cannot_be_made_is_refused_with_its_own_words(
    write: Write, init: str, args: dict[str, Any], message: str
) -> None:
    assert message in refusal(write(env_source(*filter(None, (init, RESET, SCORE))), env_args=args))


# ---- the first reset ----------------------------------------------------------------------------


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
                "Calc.reset raised KeyError: 'question' (calc.py:7) on the first task, rows:1, "
                "whose keys are ['q']"
            ),
        ),
        (
            "return [Message.user(7)]",
            (
                "Calc.reset raised EnvError: the content of a user message is int; it must be str "
                "(calc.py:7) on the first task, rows:1"
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
        "a reset on rows:1" in refusal(write(env_source(RESET, SCORE, close)))
    )
    reset = "async def reset(self, *, seed, task):\n    raise ValueError('first')"
    other = write(env_source(reset, SCORE, close), file="other.py")
    assert "Calc.reset raised ValueError: first" in refusal(other)


def made(write: Write, *methods: str) -> Any:
    config = write(env_source(*methods))
    return load_env(str(config.env))()


def test_a_reset_that_holds_the_loop_is_refused_with_the_line_that_does(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    threading.Event().wait()\n    return []"
    env = made(write, reset, SCORE)
    with pytest.raises(ConfigError) as caught:
        rehearse(env, Task("rows:1", {}), seed=0, limit_s=0.01)
    assert "Calc.reset held the event loop for more than 0.01 s (calc.py:7)" in str(caught.value)


def test_a_reset_that_is_slow_is_a_note_and_is_closed(write: Write) -> None:
    reset = "async def reset(self, *, seed, task):\n    await asyncio.Event().wait()\n    return []"
    close = "async def close(self):\n    self.closed = True"
    env = made(write, reset, SCORE, close)
    note = rehearse(env, Task("rows:1", {}), seed=0, limit_s=0.01)
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


# ---- tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "def train_tasks(cls, args, *, seed):\n    return [1]",
            "Calc.train_tasks returned list; return a source with `async def tasks(self, cursor",
        ),
        (
            "def train_tasks(cls, args, *, seed):\n    return args['split']",
            "Calc.train_tasks raised KeyError: 'split' (calc.py:12)",
        ),
        (
            "def eval_tasks(cls, args):\n    return [1]",
            "Calc.eval_tasks returned [1]; return lists",
        ),
        (
            "def eval_tasks(cls, args):\n    return {'a': [{'q': 1}]}",
            "Calc.eval_tasks returned {'a': [{'q': 1}]}; return lists of Task by name",
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


OWN_SOURCE = """
@classmethod
def train_tasks(cls, args, *, seed):
    from agentrl.types import Task
    class Source:
        async def tasks(self, cursor=0):
            yield Task("a", {"q": "2"})
    return Source()
"""


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


@pytest.mark.parametrize("number", [2, ROWS])
def test_a_malformed_row_is_named_before_anything_starts(write: Write, number: int) -> None:
    rows = ['{"q": "x"}'] * (ROWS + 5)
    rows[number - 1] = '{"q": oops}'
    config = write(env_source(RESET, SCORE), rows="\n".join(rows), rollout_shuffle=True)
    with pytest.raises(DataError, match=rf"rows.jsonl line {number} is not a JSON object"):
        preflight(config)


def test_only_the_first_rows_are_read(write: Write) -> None:
    rows = ['{"q": "x"}'] * (ROWS + 5)
    rows[ROWS] = "oops"
    assert len(preflight(write(env_source(RESET, SCORE), rows="\n".join(rows)))) == 1


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


def test_a_task_that_does_not_come_in_time_is_no_mistake() -> None:
    class Slow:
        async def tasks(self, cursor: int = 0) -> Any:
            await anyio.sleep_forever()
            yield Task("a", {})

    assert first_task(Slow(), limit_s=0.01) is None
