"""What a sandbox does for code that is well-behaved, and how a run ends when it is not."""

import signal

import anyio
import anyio.to_thread
import pytest

from agentrl.tools.sandbox import Sandbox, SandboxLimits, SandboxResult
from tests.security.sandboxes import NAMES, bubblewrap, made, sandbox

__all__ = ["sandbox"]

pytestmark = pytest.mark.anyio
SHORT = SandboxLimits(wall_s=2)


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
