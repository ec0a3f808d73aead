"""Answers that a policy might write to the rules that read them: none costs more than its share."""

import os
import resource
import signal
import time
from pathlib import Path

import anyio
import pytest

from agentrl.envs.grading import cell
from agentrl.envs.grading.expressions import equal
from agentrl.envs.named import load_shipped
from agentrl.envs.processes import children

pytestmark = pytest.mark.anyio

#: Texts that other checkers evaluate, count with, or never come back from.
FORGED = [
    "().__class__",
    "x.__class__",
    "[x for x in x]",
    "lambda x:x",
    '__import__("os")',
    "x if x else x",
    "{x:x}",
    "x[0]",
    "f'{x}'",
    "(x:=5)",
    "\x00",
    "\ud7ff",
]


async def graded(text: str, label: str = "5") -> float:
    worth: float = await load_shipped("math")(f"\\boxed{{{text}}}", label, {})
    return worth


@pytest.mark.parametrize("text", ["9**9**9**9", "(9**9**9)!", "x" * 2_000_000])
async def test_what_never_ends_is_ended_and_is_wrong(text: str) -> None:
    assert await graded(text, "x+5") == 0.0
    assert await graded("5") == 1.0


@pytest.mark.parametrize(
    "text", ["{" * 50_000, "\\frac{" * 20_000, "(" * 5_000 + "x", "1,000" * 9_000]
)
async def test_what_is_nested_deeply_is_wrong(text: str) -> None:
    assert await graded(text + "\\boxed{" + text, "5") == 0.0


@pytest.mark.parametrize("text", FORGED)
def test_nothing_but_arithmetic_is_evaluated(text: str) -> None:
    assert not equal(text, "5")


def test_what_would_be_right_if_it_were_evaluated_is_no_arithmetic() -> None:
    for text in ("[5+x][0]", "(5+x,)[0]", "(5+x)or(x)"):
        assert not equal(text, "x+5"), text


async def test_a_file_that_latex_asks_for_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("5")
    assert await graded(f"\\input{{{secret}}}") == 0.0


async def test_the_warm_process_is_started_again_once_it_is_killed() -> None:
    assert await graded("5") == 1.0
    mine = [process for process in cell._PROCESSES if process.poll() is None]
    for process in mine:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert await graded("5") == 1.0
    assert {process.pid for process in mine}.isdisjoint(children())


async def test_many_calls_that_find_it_gone_start_one_and_leave_no_zombie() -> None:
    assert await graded("5") == 1.0
    gone = cell._PROCESSES[-1].pid
    os.kill(gone, signal.SIGKILL)
    # A call that it had taken would be lost with it, and tried again by who asked.
    os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dying
    before = set(children()) - {gone}
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(graded, "5")
    with pytest.raises(ProcessLookupError):
        os.kill(gone, 0)  # a zombie would be there
    assert len(set(children()) - before) == 1


async def test_it_takes_no_module_from_the_folder_that_a_run_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sympy.py").write_text("raise SystemExit('taken')\n")
    monkeypatch.chdir(tmp_path)
    cell._started.cache_clear()
    assert await graded("x+5", "5+x") == 1.0


async def test_it_serves_a_worker_that_has_more_than_a_thousand_files_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    cell._started.cache_clear()
    try:
        assert await graded("5") == 1.0
    finally:
        for number in opened:
            os.close(number)


def test_a_process_ends_when_nobody_asks_it_any_more() -> None:
    control = cell._started()
    process = cell._PROCESSES[-1]
    cell._started.cache_clear()
    control.close()
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert process.poll() == 0
