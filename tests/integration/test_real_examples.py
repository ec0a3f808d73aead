"""The small run of each example, by the commands of its page, on the real stack.

A day plays two of the folders; a full session plays all. Runs are cut short: two iterations each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer import audit
from tests.over import python_over
from tests.slices import of_the_day
from tests.unit.page_checks import environment_of, skip_without_sandbox
from tests.unit.page_snippets import ROOT, snippets, words_of

FOLDERS = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
ITERATIONS = 2

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def commands_of(folder: str) -> list[list[str]]:
    """What the page of a folder shows before its real run."""
    small, found, _ = (ROOT / "examples" / folder / "README.md").read_text().partition("\n## Real")
    assert found
    return [words_of(each.text) for each in snippets(small) if each.language == "command"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder in which all commands of a page work, and leave what they leave."""
    for name in ("agentrl", "examples", "train.py", "train_async.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def runs(clone: Path) -> list[Path]:
    return sorted((clone / "runs").glob("*"), key=lambda path: path.stat().st_mtime)


@pytest.mark.parametrize("folder", of_the_day(FOLDERS, 2))
def test_the_small_run_of_an_example_trains(folder: str, clone: Path) -> None:
    page = ROOT / "examples" / folder / "README.md"
    skip_without_sandbox(page)
    name = environment_of(page)
    python = sys.executable if name is None else python_over(name)
    for words in commands_of(folder):
        if words[0] == "pip":
            continue
        done = played(clone, words, python)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    assert runs(clone)
    for run in runs(clone):
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["status"], summary["steps"]) == ("complete", ITERATIONS)
        report = audit(run)
        assert report.clean, report.problems


def played(clone: Path, words: list[str], python: str) -> "subprocess.CompletedProcess[str]":
    """A command of the page; a run has two iterations."""
    program, *argv = (word.replace("runs/ID", f"runs/{newest(clone)}") for word in words)
    command = [python, *(["-m", "agentrl.cli"] if program == "agentrl" else []), *argv]
    if argv[0] in ("train.py", "train_async.py"):
        command += ["--num-rollout", str(ITERATIONS)]
    env = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=1800)


def newest(clone: Path) -> str:
    return runs(clone)[-1].name if runs(clone) else "ID"
