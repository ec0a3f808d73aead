"""A row that is nested too deeply is refused where it is read, by its name."""

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from agentrl.cli.main import main as agentrl_program
from agentrl.cluster.feeder import Feeder
from agentrl.envs.check.dry_reset import first_task
from agentrl.envs.depth import MAX_DEPTH, require_shallow
from agentrl.envs.sources import RowSource
from agentrl.errors import DataError
from agentrl.types import Task
from agentrl.wire.messages import TaskCredit
from agentrl.wire.peer import BufferPeer


def nested(levels: int, kind: type = dict) -> Any:
    """So many lists or objects within one another."""
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


class Deep:
    """A source whose second row has 500 levels."""

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        for number in range(cursor, 3):
            yield Task(f"deep:{number}", nested(500 if number == 1 else 2))


@pytest.mark.parametrize("kind", [dict, list])
def test_as_deep_as_may_be_is_taken_and_one_level_more_is_not(kind: type) -> None:
    row = {"tree": nested(MAX_DEPTH - 1, kind)}
    require_shallow(row, "it")
    assert copy.deepcopy(row) == row
    with pytest.raises(DataError, match=f"it is nested more than {MAX_DEPTH} levels deep"):
        require_shallow({"tree": nested(MAX_DEPTH, kind)}, "it")


def test_a_deep_row_of_a_file_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(nested(3))}\n{json.dumps(nested(500))}\n")
    with pytest.raises(DataError, match=r"rows.jsonl line 2 is nested more than"):
        RowSource(path).check(10)


def test_a_deep_row_of_a_source_is_named_by_its_task_and_never_sent() -> None:
    sent: list[object] = []

    class Peer:
        async def deliver(self, message: object) -> None:
            sent.append(message)

    async def feed() -> None:
        feeder = Feeder(Deep(), cast(BufferPeer, Peer()))
        feeder.open()
        await feeder.credit(TaskCredit(3, 0))
        await feeder.run()

    with pytest.raises(DataError, match="the row of task deep:1 is nested more than"):
        anyio.run(feed)
    assert sent == []


def test_a_first_row_that_is_too_deep_is_refused_before_anything_starts() -> None:
    class First(Deep):
        async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
            yield Task("deep:0", nested(500))

    with pytest.raises(DataError, match="the row of task deep:0 is nested more than"):
        first_task(First())


def test_env_check_blames_the_row_and_not_the_env(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(nested(500)) + "\n")
    code = agentrl_program(["env", "check", "single-turn", "--prompt-data", str(rows)])
    assert code == DataError.exit_code
    assert "rows.jsonl line 1 is nested more than" in capsys.readouterr().err
