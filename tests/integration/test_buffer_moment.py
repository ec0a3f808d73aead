"""A ledger that a buffer is writing is read as it was at one moment, by a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.moment import read_moment
from agentrl.buffer.rows import GroupRow
from agentrl.errors import EnvironmentSetupError, StoreError
from agentrl.types import Task

#: Groups that every commit writes anew, and the characters of each: a commit is some megabytes, so
#: that the log is begun anew all the time, and a copy takes about as long as a commit.
GROUPS, LENGTH = 300, 8_000
_WRITER = """
import itertools, sys
from pathlib import Path
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import GroupRow
from agentrl.types import Task

groups, length = int(sys.argv[2]), int(sys.argv[3])
with Ledger(Path(sys.argv[1])) as ledger:
    for generation in itertools.count(1):
        text = chr(97 + generation % 26) * length
        ledger.commit(
            [
                GroupRow(mint, Task(str(mint), {"text": text}), 1, generation)
                for mint in range(1, groups + 1)
            ]
        )
        print(generation, flush=True)
"""
MOMENTS = 40


def test_every_moment_of_a_ledger_that_is_written_is_one_commit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    argv = [sys.executable, "-c", _WRITER, str(path), str(GROUPS), str(LENGTH)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            writer.stdout.readline()
            seen = []
            for _ in range(MOMENTS):
                state = read_moment(path)
                assert len(state.groups) == GROUPS
                generations = {group.cursor for group in state.groups}
                assert len(generations) == 1, "rows of several commits"
                texts = {group.task.row["text"] for group in state.groups}
                assert texts == {chr(97 + generations.pop() % 26) * LENGTH}
                seen.append(state.groups[0].cursor)
        finally:
            writer.kill()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0], "nothing was written meanwhile"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.db", "ledger.db-wal"]


def test_what_was_committed_before_is_in_the_moment(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        assert read_moment(path).minted == 0
        for mint in range(1, 40):
            ledger.commit([GroupRow(mint, Task(str(mint), {}), 1, mint)])
            if mint % 13 == 0:
                assert read_moment(path).minted == mint
    assert read_moment(path).minted == 39


def test_a_run_without_a_ledger_has_no_moment(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with pytest.raises(StoreError, match="no buffer has ever opened it"):
        read_moment(tmp_path / "ledger.db")


def test_a_copy_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        ledger.commit([GroupRow(1, Task("1", {}), 1, 1)])
        monkeypatch.setattr("tempfile.tempdir", "/proc/self")
        with pytest.raises(EnvironmentSetupError, match="it cannot be copied to /proc/self"):
            read_moment(path)
