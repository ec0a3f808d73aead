"""Committed results name the commit that was measured, and it is one that a reader can look at."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import RESULTS, ROOT


def git(*words: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)


def no_history(folder: Path) -> str | None:
    """Why the history of `folder` cannot be asked."""
    try:
        shallow = git("rev-parse", "--is-shallow-repository", folder=folder)
    except FileNotFoundError:
        return "there is no git"
    if shallow.returncode:
        return "this is no clone"
    return "this clone is shallow" if shallow.stdout.strip() == "true" else None


def defect(commit: str, folder: Path = ROOT) -> str | None:
    """Why `commit`, of a file of results, says nothing to a reader; None: it does."""
    if not re.fullmatch("[0-9a-f]{12,40}", commit):
        return f"{commit!r} is no commit: measure on committed code"
    if git("merge-base", "--is-ancestor", commit, "HEAD", folder=folder).returncode:
        return f"commit {commit} is not in the history of HEAD: measure again"
    return None


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_name_a_commit_of_this_history(path: Path) -> None:
    if why := no_history(ROOT):
        pytest.skip(f"{why}: the commit of {path.name} cannot be looked up")
    found = json.loads(path.read_text())
    named = [found["commit"], *found.get("commits", [])]
    assert list(filter(None, map(defect, named))) == []


def committed(folder: Path, text: str) -> str:
    """A commit of `text` in a new or known repository."""
    (folder / "file").write_text(text)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("add", "file"), (*author, "commit", "-qm", text)):
        assert git(*words, folder=folder).returncode == 0
    return git("rev-parse", "--short=12", "HEAD", folder=folder).stdout.strip()


def test_a_commit_of_another_branch_or_of_no_branch_or_with_changes_is_refused(
    tmp_path: Path,
) -> None:
    git("init", "-q", folder=tmp_path)
    first = committed(tmp_path, "one")
    git("checkout", "-q", "-b", "side", folder=tmp_path)
    side = committed(tmp_path, "side")
    git("checkout", "-q", "-", folder=tmp_path)
    second = committed(tmp_path, "two")
    assert [defect(commit, tmp_path) for commit in (first, second)] == [None, None]
    assert "is not in the history of HEAD" in str(defect(side, tmp_path))
    assert "is not in the history of HEAD" in str(defect("0123456789ab", tmp_path))
    assert "measure on committed code" in str(defect(f"{second}+", tmp_path))
    assert "is no commit" in str(defect("", tmp_path))


def test_where_there_is_no_full_history_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    whole, shallow, none = tmp_path / "whole", tmp_path / "shallow", tmp_path / "none"
    none.mkdir()
    git("init", "-q", str(whole), folder=tmp_path)
    committed(whole, "one")
    committed(whole, "two")
    git("clone", "-q", "--depth", "1", f"file://{whole}", str(shallow), folder=tmp_path)
    assert no_history(whole) is None
    assert no_history(shallow) == "this clone is shallow"
    assert no_history(none) == "this is no clone"
