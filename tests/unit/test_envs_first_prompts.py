"""The prompt that `reset` gives is compared with the model before anything starts."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main as cli
from agentrl.cli.train import main
from agentrl.config.presets import PRESETS
from agentrl.envs.check.first_prompts import TASKS
from agentrl.envs.check.preflight import preflight
from tests.unit.env_modules import SCORE, Write, env_source, refusal, write_run

pytestmark = pytest.mark.slow

MODEL = str(PRESETS["search-r1-local"].values["hf_checkpoint"])
RESET = 'async def reset(self, *, seed, task):\n    return [Message.user("word " * task["n"])]'
ENV = env_source(RESET, SCORE, said="reward_reads_text_only = False")


def rows(*lengths: int) -> str:
    return "".join(f'{{"n": {length}}}\n' for length in lengths)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write_run` into the current directory, of tasks that are played in their order."""
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"hf_checkpoint": MODEL, "chat_format": "qwen"}
    return partial(write_run, tmp_path, ENV, **given, rollout_shuffle=False)


@pytest.mark.parametrize(
    ("num", "has"), [(6000, "12009 tokens"), (800_000, "far more")], ids=["counted", "unread"]
)
def test_tasks_of_which_none_fits_are_refused(write: Write, num: int, has: str) -> None:
    fits = r"Calc: no first prompt of the first task fits 1022 tokens \(what the model's context"
    more = f"that of rows:1 has {has}; shorten what reset returns, or give it more room"
    assert re.fullmatch(rf"{fits} leaves\): {more}", refusal(write(rows=rows(num))))


def test_where_a_later_task_fits_it_is_a_note(write: Write) -> None:
    _, note = preflight(write(rows=rows(6000, 7000, 5, 5)))
    assert note.startswith("2 of the first 4 tasks have a first prompt of more than 1022 tokens")
    assert "and their groups will be filtered; the longest is rows:2 with " in note


def test_a_few_tasks_are_tried_and_not_all(write: Write) -> None:
    said = refusal(write(rows=rows(*[6000] * (TASKS + 5))))
    assert f"of the first {TASKS} tasks fits" in said
    assert len(preflight(write(rows=rows(5, 6000)))) == 1, "the first fits, so nothing else is said"


def test_a_flag_that_bounds_prompts_is_named(write: Write) -> None:
    said = refusal(write(rows=rows(600), rollout_max_prompt_len=100))
    assert "fits 100 tokens (--rollout-max-prompt-len)" in said


def test_a_later_task_that_cannot_be_tried_hides_nothing(write: Write) -> None:
    run = write(rows=rows(6000) + '{"m": 1}\n' + rows(5))
    assert "1 of the first 2 tasks have a first prompt" in preflight(run)[-1]


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry run", "run"])
def test_the_program_ends_before_anything_starts(
    write: Write, dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(rows=rows(6000))
    argv = ["--env", "calc.py:Calc", "--prompt-data", "rows.jsonl", "--hf-checkpoint", MODEL]
    argv += ["--n-samples-per-prompt", "2", "--rollout-max-response-len", "64", *dry]
    assert main(argv, "train_async") == 2
    assert "Calc: no first prompt of the first task fits 1022 tokens" in capsys.readouterr().err


def test_a_check_of_the_env_compares_with_a_model_that_is_named(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(rows=rows(6000))
    check = ["env", "check", "calc.py", "--prompt-data", "rows.jsonl"]
    assert cli.main([*check, "--hf-checkpoint", MODEL]) == 1
    said = capsys.readouterr().out
    assert "BAD a model has room for its first prompt\n    no first prompt of the first" in said
    assert cli.main(check) == 0
    said = capsys.readouterr().out
    assert "--  a model has room for its first prompt\n    30,000 characters: give" in said
    assert said.endswith("Calc: what could be tried is kept\n")
    write(rows=rows(5))
    assert cli.main([*check, "--hf-checkpoint", MODEL]) == 0
    said = capsys.readouterr().out
    assert "ok  a model has room for its first prompt\n" in said
    assert said.endswith("Calc: every promise is kept\n")
    assert cli.main([*check, "--hf-checkpoint", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
