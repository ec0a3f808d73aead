"""Copies of the repository, in which a recipe is done and tested."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = [
    "IGNORED",
    "QUIETLY",
    "Edits",
    "changed",
    "clone",
    "commit",
    "edit",
    "git",
    "run",
    "sound_copy",
]

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")
#: What is said of a test that fails is not lost among warnings.
QUIETLY = ("-q", "-x", "--disable-warnings", "-p", "no:cacheprovider")
COPIED = (
    *("agentrl", "benchmarks", "docs", "envs_contrib", "scripts", "tests"),
    *("pyproject.toml", "train.py", "train_async.py"),
)

#: What each file says in the place of something that stands in it once.
Edits = dict[str, list[tuple[str, str]]]


def sound_copy(folder: Path) -> Path:
    """`folder`, made a repository of one commit, with what ships."""
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=IGNORED)
        else:
            shutil.copy(source, folder / name)
    git(folder, "init", "--quiet")
    commit(folder, "what ships")
    return folder


def clone(sound: Path, folder: Path) -> Path:
    """A copy of the repository `sound` in `folder`."""
    copy = folder / "repository"
    git(folder, "clone", "--quiet", "--local", str(sound), str(copy))
    return copy


def edit(copy: Path, path: str, edits: list[tuple[str, str]]) -> None:
    """Edit a file of a copy."""
    text = (copy / path).read_text()
    for of, by in edits:
        assert text.count(of) == 1, f"{of!r} in {path}"
        text = text.replace(of, by)
    (copy / path).write_text(text)


def changed(copy: Path) -> list[str]:
    """The files of the last commit."""
    return git(copy, "show", "--name-only", "--format=", "HEAD").splitlines()


def run(folder: Path, *words: str) -> None:
    env = os.environ | {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)}
    env["AGENTRL_TESTS"] = "full"  # what was added has no day of its own
    result = subprocess.run(
        [sys.executable, "-B", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}{result.stderr[-2000:]}"


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    who = ("-c", "user.name=recipe", "-c", "user.email=recipe@example.org")
    git(folder, *who, "commit", "--quiet", "--message", message)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout
