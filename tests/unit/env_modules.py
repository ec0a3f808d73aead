"""Modules with an Env, right or wrong, and the runs that name them."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.check.preflight import preflight
from agentrl.errors import ConfigError

Write = Callable[..., RunConfig]
RESET = 'async def reset(self, *, seed, task):\n    return [Message.user(task["q"])]'
SCORE = "async def score(self, text):\n    return 1.0"
SAID = "reward_reads_text_only = True"


def env_source(*methods: str, before: str = "", said: str = SAID) -> str:
    """A module with one Env `Calc` of these methods, and what is `said` of its reward."""
    body = textwrap.indent("\n".join([*methods, said]) or "pass", "    ")
    head = "import asyncio, threading\nfrom agentrl import Env, Message, Step, tool\n"
    return f"{head}from agentrl.errors import EngineError\n{before}\nclass Calc(Env):\n{body}\n"


def write_run(
    folder: Path,
    source: str,
    *,
    rows: str | None = '{"q": "2 + 2"}\n',
    file: str = "calc.py",
    **fields: Any,
) -> RunConfig:
    """Write a module and rows.jsonl into `folder`, the current directory; a run of them."""
    (folder / file).write_text(source)
    if rows is not None:
        (folder / "rows.jsonl").write_text(rows)
        fields = {"prompt_data": "rows.jsonl"} | fields
    return RunConfig(**({"env": f"{file}:Calc"} | fields))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write_run` into the current directory."""
    monkeypatch.chdir(tmp_path)
    return partial(write_run, tmp_path)


def refusal(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight(config)
    return str(caught.value)
