"""The environments over the one of these tests, which `make setup` makes (`scripts/setup.sh`)."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["is_played_over", "play_over", "python_over"]


def python_over(name: str) -> str:
    """The interpreter of `.venv/over/NAME`; the test is skipped where there is none."""
    path = Path(sys.prefix) / "over" / name / "bin" / "python"
    if not path.exists():
        pytest.skip(f"there is no environment {name} over {sys.prefix}: make setup makes it")
    return str(path)


def play_over(name: str, *words: str) -> None:
    """Play one test in the environment of that name, by these words of pytest."""
    argv = [python_over(name), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout


def is_played_over(name: str, package: str, request: pytest.FixtureRequest) -> bool:
    """Whether the test that asks has just been played in the environment of that name, because the
    package is not in this one."""
    if find_spec(package) is not None:
        return False
    play_over(name, f"{request.path}::{request.node.name}")
    return True
