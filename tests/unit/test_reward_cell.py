"""A rule that runs in a process of its own: what becomes of one that breaks, or is ended."""

import datetime
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.envs.grading import cell
from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.named import load_reward, load_shipped
from agentrl.errors import ConfigError, EnvError, InfrastructureError

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def rules_of_this_module() -> Iterator[None]:
    """A warm process that finds the module of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        cell._started.cache_clear()
        yield
    cell._started.cache_clear()


@in_a_cell()
def killed(text: str, label: object, task: dict[str, object], /) -> float:
    """A process that somebody else ends, as a host does that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@in_a_cell(otherwise=-1.0)
def endless(text: str, label: object, task: dict[str, object], /) -> float:
    while True:
        pass


@in_a_cell(otherwise=-1.0)
def too_large(text: str, label: object, task: dict[str, object], /) -> float:
    return float(len(bytearray(2 * cell.MAX_BYTES)))


@in_a_cell()
def broken(text: str, label: object, task: dict[str, object], /) -> float:
    return 1.0 / len(text)


@in_a_cell()
def metadata_of(text: str, label: object, task: dict[str, object], /) -> object:
    return task["metadata"]


async def test_a_rule_that_breaks_is_an_error_with_its_line_and_no_reward() -> None:
    with pytest.raises(EnvError, match=r"(?s)broken .*line \d+, in broken.*ZeroDivisionError"):
        await broken("", "5", {})


async def test_a_process_that_was_ended_by_another_is_no_reward() -> None:
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        await killed("a", "5", {})
    assert await load_shipped("math")("\\boxed{5}", "5", {}) == 1.0


async def test_a_text_that_spends_its_time_or_memory_is_worth_what_the_rule_says() -> None:
    assert await endless("a", "5", {}) == -1.0
    assert await too_large("a", "5", {}) == -1.0


async def test_a_row_that_gpqa_cannot_read_is_the_rows_fault() -> None:
    gpqa = load_shipped("gpqa")
    for metadata in ({"valid_letters": 5}, {"choices": 5}):
        with pytest.raises(RuleError, match=f"`{min(metadata)}` of the row's metadata"):
            await gpqa("The answer is B", "B", {"metadata": metadata})
    with pytest.raises(RuleError, match="the label nan is no"):
        await gpqa("The answer is B", float("nan"), {})


async def test_what_a_row_of_parquet_may_hold_reaches_the_rule() -> None:
    row = {"day": datetime.date(2024, 5, 1), "large": 10**30, "raw": b"ab"}
    found = await metadata_of("a", "5", {"metadata": row})
    assert found == {"day": "2024-05-01", "large": 10**30, "raw": "YWI="}
    with pytest.raises(RuleError, match=r"cannot be sent to the rule metadata_of: .*object"):
        await metadata_of("a", "5", {"metadata": {"x": object()}})


def test_a_rule_in_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from agentrl.envs.grading.cell import in_a_cell\n\n\n"
        "@in_a_cell()\ndef right(text, label, task):\n    return 1.0\n"
    )
    with pytest.raises(ConfigError, match=r"right \(.*mine\.py:4\).*pkg\.module:right"):
        load_reward(f"{mine}:right")
    ours = Path(cell.__file__).parents[1] / "rewards" / "math.py"
    with pytest.raises(ConfigError, match="one of agentrl's own is named with --rm-type"):
        load_reward(f"{ours}:math")
