"""A file that is named by its path imports what lies beside it, and shadows nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.envs.registry import load_env
from agentrl.errors import ConfigError

_ENV = """
import json
from agentrl import Env
from beside_{name} import WORD


class Mine(Env):
    word = WORD

    async def reset(self, *, seed, task): ...

    async def score(self, text):
        from later_{name} import SCORE
        return SCORE


def reward(text, label, task):
    from later_{name} import SCORE
    return SCORE
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An Env, its neighbours, and files that are called as modules of others are."""
    name = tmp_path.name.replace("-", "_")
    (tmp_path / "mine.py").write_text(_ENV.format(name=name))
    (tmp_path / f"beside_{name}.py").write_text("WORD = 'hello'\n")
    (tmp_path / f"later_{name}.py").write_text("SCORE = 0.5\n")
    for taken in ("json", "agentrl", "msgspec", "anyio"):
        (tmp_path / f"{taken}.py").write_text("raise ImportError('this shadows another')\n")
    return tmp_path


def test_a_file_imports_its_neighbours(folder: Path) -> None:
    cls = load_env(f"{folder / 'mine.py'}:Mine")
    assert cls.word == "hello"  # type: ignore[attr-defined]


OF_ENV = """
import anyio, json, msgspec
from agentrl.envs.registry import load_env
print(anyio.run(load_env(sys.argv[1] + ":Mine")().score, ""))
"""
OF_REWARD = """
from agentrl.envs.named import load_reward
print(load_reward(sys.argv[1] + ":reward")("", "", {}))
"""


@pytest.mark.parametrize("code", [OF_ENV, OF_REWARD])
def test_another_process_does_too_from_anywhere_and_in_a_function(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, code: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}", str(folder / "mine.py")],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0.5\n", "")


def test_what_lies_nowhere_is_told_as_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError, match=r"cannot import .*mine.py: ModuleNotFoundError"):
        load_env(str(tmp_path / "mine.py"))
