"""A rule that runs in a process of its own: what becomes of one that breaks, or is ended."""

import datetime
import importlib
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentrl.envs.grading import cell
from agentrl.envs.grading.cell import RuleError, in_a_cell
from agentrl.envs.named import load_reward, load_shipped
from agentrl.errors import ConfigError, EnvError, InfrastructureError

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: Where a rule runs, as opposed to this process.
IN_THE_CELL = "'agentrl.envs.grading.cell_process' in __import__('sys').orig_argv"


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


def a_package(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rule `one` of a module of a user's own, which the warm process finds too."""
    rule = (
        "from agentrl.envs.grading.cell import in_a_cell\n\n\n"
        "@in_a_cell()\ndef one(text, label, task):\n    return 1.0\n"
    )
    (folder / f"{name}.py").write_text(rule + f"\n\nif {IN_THE_CELL}:\n" + indent(body, "    "))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parents[2]), str(folder))))
    cell._started.cache_clear()
    return importlib.import_module(name).one


async def test_the_import_of_a_rules_module_is_no_part_of_its_time_and_happens_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = f"""\
import resource
allowed, _ = resource.getrlimit(resource.RLIMIT_CPU)
assert allowed == resource.RLIM_INFINITY or allowed > {cell.CPU_S}
with open({str(tmp_path / "imports")!r}, "a") as imports:
    imports.write("once\\n")
"""
    one = a_package(tmp_path, "slow_to_import", slow, monkeypatch)
    assert [await one("a", "5", {}) for _ in range(3)] == [1.0] * 3
    # the trial and the warm process
    assert (tmp_path / "imports").read_text() == "once\n" * 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise KeyError('no lexicon')", r"line \d+.*no lexicon"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ends the process that imports it"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=[9]).start()",
            "has started 1 threads",
        ),
    ],
)
async def test_a_module_that_cannot_be_imported_is_an_error_that_names_it_and_harms_no_other(
    body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_package(tmp_path, f"unimportable_{zlib.crc32(body.encode())}", body, monkeypatch)
    large = {"metadata": "x" * 2_000_000}
    for row in ({}, large):
        with pytest.raises(EnvError, match=rf"(?s)module {one.__module__} of the rule one.*{why}"):
            await one("a", "5", row)
    warm = cell._PROCESSES[-1]
    assert await load_shipped("math")("\\boxed{5}", "5", {}) == 1.0
    assert cell._PROCESSES[-1] is warm
    assert warm.poll() is None


@in_a_cell()
def asleep(text: str, label: object, task: dict[str, object], /) -> float:
    """A rule that waits for what never comes."""
    Path(text).write_text(str(os.getpid()))
    time.sleep(10_000)
    return 1.0


async def test_the_process_of_a_cancelled_call_is_ended_and_its_thread_too(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    before = threading.active_count()

    async def call() -> None:
        await asleep(str(told), "5", {})

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.to_thread.run_sync(wait_until, lambda: told.exists() and told.read_text())
        group.cancel_scope.cancel()
    process = Path(f"/proc/{told.read_text()}")
    await anyio.to_thread.run_sync(wait_until, lambda: not process.exists())
    assert threading.active_count() <= before + 2
    assert await load_shipped("math")("\\boxed{5}", "5", {}) == 1.0


def wait_until(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
