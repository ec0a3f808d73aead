"""preflight: an Env that works passes; one that cannot work is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.errors import ConfigError, DataError
from tests.unit.env_modules import RESET, SCORE, Write, env_source, refusal, write

__all__ = ["write"]

pytestmark = pytest.mark.slow


def test_a_good_env_passes_and_its_tools_are_named(write: Write) -> None:
    look = '@tool\nasync def look(self, query: str, top: int = 1) -> str:\n    """Look."""'
    assert preflight(write(env_source(RESET, SCORE, look + '\n    return "x"'))) == [
        "environment Calc; tools of the model: look(query, top)"
    ]


def test_an_env_without_tools_is_told_so_since_a_forgotten_decorator_looks_like_that(
    write: Write,
) -> None:
    (note,) = preflight(write(env_source(RESET, SCORE)))
    assert "none before reset (`@tool` above a method makes it one)" in note


STEP = "async def step(self, turn):\n    return Step(reward=1.0, terminated=True)"


@pytest.mark.parametrize(
    ("methods", "said", "is_asked"),
    [
        ((RESET, SCORE), "", True),
        ((RESET, SCORE), "reward_reads_text_only = None", True),
        ((RESET, SCORE), "reward_reads_text_only = True", False),
        ((RESET, SCORE), "reward_reads_text_only = False", False),
        ((RESET, STEP), "", False),
    ],
)
def test_who_does_not_say_what_score_reads_is_told_that_nothing_verifies_it(
    write: Write, methods: tuple[str, ...], said: str, is_asked: bool
) -> None:
    notes = preflight(write(env_source(*methods, said=said)))
    told = ["write `reward_reads_text_only = True` in the class" in note for note in notes]
    assert told == ([False, True] if is_asked else [False])


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


def test_a_label_that_is_an_object_is_refused_with_a_key_to_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a", "reward_model": {"style": "rule", "ground_truth": "4"}}\n')
    config = RunConfig(
        env="single-turn", prompt_data=str(path), env_args={"label_key": "reward_model"}
    )
    with pytest.raises(ConfigError, match=r"--label-key reward_model\.ground_truth"):
        preflight(config)


def test_a_row_that_is_broken_far_behind_is_found_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a", "label": "b"}\n' * 15_000 + '{"input": broken\n')
    config = RunConfig(env="single-turn", prompt_data=str(path))
    with pytest.raises(DataError, match="line 15001 is not a JSON object"):
        preflight(config)


SERVICE = {"argv": ["serve"], "ready_path": "/", "path": "/"}


@pytest.mark.parametrize(
    ("args", "row", "said"),
    [
        ({"rm_type": "remote_rm"}, "", "^--rm-type remote_rm with --opd-type sglang"),
        ({"rm_type": "judge"}, "", "^--rm-type judge with --opd-type sglang"),
        ({"reward": "remote_rm"}, "", "^--custom-rm-path remote_rm"),
        ({}, ', "metadata": {"rm_type": "remote_rm"}', "^rm_type of the row of task rows:2"),
        ({"rm_type": "remote_rm", "reward_service": SERVICE}, "", None),
        ({"rm_type": "exact"}, "", None),
    ],
)
def test_a_teacher_and_a_reward_model_do_not_share_an_address(
    args: dict[str, Any], row: str, said: str | None, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    plain = '{"input": "a", "label": "b"'
    rows.write_text(f"{plain}}}\n{plain}{row}}}\n")
    url = "http://me:secret@127.0.0.1:9"
    config = RunConfig(
        use_opd=True,
        opd_type="sglang",
        rm_url=url,
        env="single-turn",
        prompt_data=str(rows),
        env_args={"rm_url": url, **args},
    )
    if said is None:
        preflight(config)
        return
    with pytest.raises(ConfigError, match=said) as refused:
        preflight(config)
    assert "secret" not in str(refused.value)
