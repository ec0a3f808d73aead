"""A sandbox as its host sees it: the namespaces of the code that runs in it, and that no process
and no folder outlives a run or its worker."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest

from agentrl.tools.sandbox import Sandbox, SandboxLimits
from agentrl.tools.sandbox import process as run
from agentrl.tools.sandbox.bubblewrap import interpreter
from agentrl.tools.sandbox.plain import remove_tree
from tests.security.sandbox_processes import all_gone, below, children, code_below, has_filter
from tests.security.sandboxes import NAMES, bubblewrap, made, sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.anyio

ROOT = str(Path(__file__).resolve().parents[2])
LONG = SandboxLimits(wall_s=600)


async def test_a_cancelled_run_leaves_no_process_and_no_folder(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[psutil.Process] = []
    others = children()
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.run, "import time; time.sleep(600)", LONG)
        seen += await anyio.to_thread.run_sync(code_below, os.getpid(), others)
        group.cancel_scope.cancel()
    await all_gone(seen)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - in a coroutine


async def test_a_process_that_cannot_be_killed_is_logged_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = await anyio.open_process(["sleep", "600"])
    with monkeypatch.context() as patch:
        patch.setattr(run, "END_S", 0.1)
        patch.setattr(os, "killpg", lambda pid, number: None)
        patch.setattr(subprocess.Popen, "kill", lambda process: None)
        # A task of its own: what this test is against cannot be cancelled.
        ending = asyncio.ensure_future(run._end(process))
        await asyncio.wait({ending}, timeout=300)
        has_ended = ending.done()
    process.kill()
    await ending
    await process.aclose()
    assert has_ended
    assert f"process {process.pid} of a sandbox" in caplog.text


WORKER = """
import anyio, sys
from agentrl.tools.sandbox import SandboxLimits
from tests.security.sandboxes import made
anyio.run(made(sys.argv[1]).run, "import time; time.sleep(600)", SandboxLimits(wall_s=600))
"""

#: Forks twice, leaves session and group, closes everything, and sleeps.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        time.sleep(600)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("name", NAMES)
async def test_no_code_outlives_a_worker_that_is_killed(name: str, tmp_path: Path) -> None:
    made(name)
    # what the plain sandbox leaves of its folder goes with the test's
    places = {"PYTHONPATH": os.pathsep.join([ROOT, *sys.path]), "TMPDIR": str(tmp_path)}
    environment = os.environ | places
    worker = await anyio.open_process(
        [sys.executable, "-c", WORKER, name], env=environment, stdin=None, stdout=None, stderr=None
    )
    try:
        seen = await anyio.to_thread.run_sync(code_below, worker.pid)
    finally:
        worker.kill()
        await worker.wait()
    await all_gone(seen)


async def test_daemons_die_with_bubblewrap_even_without_the_filter() -> None:
    """The walls alone, were the filter of system calls to be passed by."""
    command = bubblewrap().command([interpreter(), "-S", "-c", DAEMON], {})
    jail = await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=None, stderr=None)
    try:
        # bwrap, its first process inside, and three generations of the program
        seen = await anyio.to_thread.run_sync(below, jail.pid, lambda found: len(found) == 4)
    finally:
        jail.kill()
        await jail.wait()
    await all_gone(seen)


#: What each sandbox gives a program of its own, as the kernel names it.
NAMESPACES = {
    "bubblewrap": {"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"},
    "plain": {"ipc", "mnt", "net", "user", "uts"},
    "plain without namespaces": set[str](),
}


@pytest.mark.parametrize("name", NAMES)
async def test_every_promised_namespace_is_another(name: str) -> None:
    """The walls, as the host sees them: the filter would hide that one is missing."""
    sandbox = made(name)
    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.run, "import time; time.sleep(600)", LONG)
        seen = await anyio.to_thread.run_sync(code_below, os.getpid())
        runs = next(process for process in seen if has_filter(process))
        found = {
            kind for kind in NAMESPACES["bubblewrap"] if namespace(runs.pid, kind) != mine(kind)
        }
        group.cancel_scope.cancel()
    if name == "plain" and not found:
        pytest.skip("this kernel gives the plain sandbox no namespaces")
    assert found == NAMESPACES[name]


def mine(kind: str) -> str:
    return namespace(os.getpid(), kind)


def namespace(pid: int, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115 - it leads to no path


@pytest.fixture
def folder() -> Iterator[Path]:
    """Removed by a program that can, whatever became of the test: pytest cannot remove it."""
    path = Path(tempfile.mkdtemp(prefix="sandbox-deep-"))
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=False)


def test_a_folder_deeper_than_any_path_is_removed(folder: Path) -> None:
    root, here = folder / "root", os.open(".", os.O_RDONLY)
    root.mkdir()
    outside = folder / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    try:
        os.chdir(root)
        for _ in range(1500):
            Path("name-of-a-folder").mkdir()
            Path("file").write_text("x")
            Path("link").symlink_to(outside)
            os.chdir("name-of-a-folder")
    finally:
        os.fchdir(here)
        os.close(here)
    locked = root / "locked" / "in"
    locked.mkdir(parents=True)
    locked.chmod(0)
    locked.parent.chmod(0)
    remove_tree(root)
    assert not root.exists()
    assert (outside / "kept").read_text() == "x"
