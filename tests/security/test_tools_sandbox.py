"""What a sandbox does for code that is well-behaved, and how a run ends when it is not."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest

from agentrl.errors import EnvironmentSetupError, InfrastructureError
from agentrl.tools.sandbox import Sandbox, SandboxLimits, SandboxResult, choice, open_sandbox
from agentrl.tools.sandbox import process as run
from agentrl.tools.sandbox.bubblewrap import Bubblewrap, interpreter
from agentrl.tools.sandbox.plain import Plain, remove_tree
from tests.security.sandboxes import NAMES, bubblewrap, made

pytestmark = pytest.mark.anyio

ROOT = str(Path(__file__).resolve().parents[2])
LONG = SandboxLimits(wall_s=600)
SHORT = SandboxLimits(wall_s=2)


@pytest.fixture(params=NAMES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return made(request.param)


# ---- code that does what it should ---------------------------------------------------------------


async def test_a_program_runs_with_the_standard_library(sandbox: Sandbox) -> None:
    code = """
import dataclasses, decimal, fractions, itertools, json, math, re, statistics, sqlite3, sys
@dataclasses.dataclass
class Point:
    x: int
with open("note.txt", "w") as file:
    file.write("kept while it runs")
print(Point(6), math.comb(10, 5), open("note.txt").read(), __name__, sys.argv)
print("a word", file=sys.stderr)
"""
    result = await sandbox.run(code, SandboxLimits())
    printed = "Point(x=6) 252 kept while it runs __main__ ['<code>']\n"
    assert result == SandboxResult(printed, "a word\n", 0)


async def test_an_error_shows_the_program_and_nothing_of_ours(sandbox: Sandbox) -> None:
    result = await sandbox.run("def half(x):\n    return x / 0\n\nhalf(4)", SandboxLimits())
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1:3] == [
        '  File "<code>", line 4, in <module>',
        "    half(4)",
    ]
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "inside" not in result.stderr


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("print(", 1),
        ("x = '\\0'; print(1", 1),
        ("\x00", 1),
        ("raise KeyboardInterrupt", 1),
        ("import ctypes; ctypes.string_at(0)", 128 + signal.SIGSEGV),
    ],
)
async def test_an_exit_code_is_that_of_a_shell(code: str, exit_code: int) -> None:
    for name in NAMES[1:]:
        result = await made(name).run(code, SandboxLimits())
        assert (result.exit_code, result.timed_out, result.is_cut) == (exit_code, False, False)


async def test_bubblewrap_reports_signals_alike() -> None:
    result = await bubblewrap().run("import ctypes; ctypes.string_at(0)", SandboxLimits())
    assert result.exit_code == 128 + signal.SIGSEGV


async def test_the_same_code_gives_the_same_answer(sandbox: Sandbox) -> None:
    code = "import random; print({str(i) for i in range(99)}, random.random(), hash('word'))"
    first, again = [await sandbox.run(code, SandboxLimits()) for _ in range(2)]
    assert first == again
    assert first.exit_code == 0


async def test_the_limits_are_those_of_the_run(sandbox: Sandbox) -> None:
    code = """
import resource
for name in ("CPU", "AS", "DATA", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK"):
    print(name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0])
"""
    limits = SandboxLimits(cpu_s=7, memory_bytes=99 * 2**20, disk_bytes=12345, max_open_files=20)
    result = await sandbox.run(code, limits)
    assert result.stdout.split("\n")[:-1] == [
        "CPU 7",
        f"AS {99 * 2**20}",
        f"DATA {99 * 2**20}",
        "FSIZE 12345",
        "NOFILE 20",
        "NPROC 0",
        "CORE 0",
        "MEMLOCK 0",
    ]


async def test_many_runs_at_once_do_not_meet(sandbox: Sandbox) -> None:
    found: dict[int, SandboxResult] = {}

    async def one(number: int) -> None:
        code = f"open('mine', 'x').write('{number}'); print(open('mine').read())"
        found[number] = await sandbox.run(code, SandboxLimits())

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(one, number)
    assert {number: result.stdout for number, result in found.items()} == {
        number: f"{number}\n" for number in range(6)
    }


async def test_bubblewrap_shows_little_and_lets_only_the_work_folder_be_written() -> None:
    code = """
import os
print(sorted(os.environ))
for folder, _, files in os.walk("/"):
    for path in (f"{folder}/{name}" for name in files):
        if os.access(path, os.W_OK) and not os.path.islink(path): print("file", path)
    try: open(f"{folder}/made", "w").close()
    except OSError: continue
    print("folder", folder)
print(os.path.exists("/proc"), os.path.exists("/sys"), os.listdir("/dev"))
"""
    result = await bubblewrap().run(code, SandboxLimits(cpu_s=600, wall_s=600))
    environment = ["LC_ALL", "PWD", "PYTHONHASHSEED"]
    said = [str(environment), "file /dev/null", "folder /work", "False False ['null']"]
    assert sorted(result.stdout.splitlines()) == sorted(said)


# ---- code that does not end ----------------------------------------------------------------------


async def test_output_is_cut_at_its_limit_and_ends_the_run(sandbox: Sandbox) -> None:
    limits = SandboxLimits(wall_s=600, max_output_bytes=1000)
    for stream in ("stdout", "stderr"):
        code = f"import sys\nwhile True: sys.{stream}.write('xyz')"
        result = await sandbox.run(code, limits)
        assert (result.is_cut, result.timed_out, result.exit_code) == (True, False, None)
        assert getattr(result, stream) == ("xyz" * 400)[:1000]


async def test_output_of_exactly_the_limit_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('x' * 999)", SandboxLimits(max_output_bytes=1000))
    assert result == SandboxResult("x" * 999 + "\n", "", 0)


async def test_what_was_printed_before_the_deadline_is_kept(sandbox: Sandbox) -> None:
    result = await sandbox.run("import time; print(1, flush=True); time.sleep(600)", SHORT)
    assert result == SandboxResult("1\n", "", None, timed_out=True)


async def test_computing_too_long_is_told_apart_from_a_failure(sandbox: Sandbox) -> None:
    result = await sandbox.run("while True: pass", SandboxLimits(cpu_s=1, wall_s=600))
    assert (result.timed_out, result.exit_code) == (True, 128 + signal.SIGXCPU)


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


# ---- nothing outlives the worker -----------------------------------------------------------------

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


def children() -> list[psutil.Process]:
    """Of this process; other tests have some that live as long as the session."""
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def code_below(pid: int, others: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """All processes below `pid` but `others`, once one of them has the filter: then the code
    runs."""
    return below(pid, lambda found: any(map(has_filter, found)), others)


def below(
    pid: int,
    enough: Callable[[list[psutil.Process]], bool],
    others: Collection[psutil.Process] = (),
) -> list[psutil.Process]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        every: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        found = [process for process in every if process not in others]
        if enough(found):
            return found
        time.sleep(0.01)
    raise AssertionError(f"process {pid} never had the children that were waited for")


def has_filter(process: psutil.Process) -> bool:
    try:
        return "\nSeccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False


async def all_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, left = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=300))
    assert not left


# ---- which sandbox there is ----------------------------------------------------------------------


async def test_bubblewrap_is_used_where_it_works() -> None:
    expected = bubblewrap()
    assert await open_sandbox() == await open_sandbox(allow_unsafe=True) == expected


async def test_without_bubblewrap_the_refusal_names_the_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "_found", {})  # what another test has found is not said again
    said = r"bubblewrap is not installed.*apt install bubblewrap.*--allow-unsafe-sandbox"
    with pytest.raises(EnvironmentSetupError, match=said):
        await open_sandbox()
    assert isinstance(await open_sandbox(allow_unsafe=True), Plain)
    assert "the model's code runs in the plain sandbox" in caplog.text


@pytest.mark.parametrize("namespaces", [True, False])
async def test_who_gets_no_namespaces_is_told_what_of_the_worker_is_open(
    namespaces: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = Plain(namespaces=namespaces)
    if namespaces and not await choice.has_namespaces(plain):
        pytest.skip("this kernel gives the plain sandbox no namespaces")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choice, "_found", {})
    monkeypatch.setattr(choice, "Plain", lambda: plain)
    assert await open_sandbox(allow_unsafe=True) == plain
    assert ("no namespaces, on this worker's memory" in caplog.text) is not namespaces


async def test_a_bubblewrap_that_does_not_work_is_not_used_and_its_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="No permissions to create new namespace"):
        await open_sandbox()
    assert isinstance(await open_sandbox(allow_unsafe=True), Plain)


async def test_one_failure_of_bubblewrap_does_not_give_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that begin at once try it together, and twice in all where it fails once."""
    real = bubblewrap().program
    flaky, starts = tmp_path / "bwrap", tmp_path / "starts"
    flaky.write_text(
        f"#!/bin/sh\necho x >> {starts}\n"
        f'if [ "$(wc -l < {starts})" = 1 ]; then echo Try again >&2; exit 1; fi\n'
        f'exec {real} "$@"\n'
    )
    flaky.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found: list[Sandbox] = []

    async def one() -> None:
        found.append(await open_sandbox(allow_unsafe=True))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
    assert found == [Bubblewrap(str(flaky))] * 3
    assert starts.read_text() == "x\n" * 2


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/bwrap"])
async def test_a_run_that_cannot_begin_is_an_infrastructure_failure(program: str) -> None:
    with pytest.raises(InfrastructureError, match=program):
        await Bubblewrap(program).run("print(1)", SandboxLimits())


# ---- the plain sandbox's folder ------------------------------------------------------------------


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
