"""Every attempt of `sandbox_attempts.py` on every sandbox, and, as a control, without one."""

import ctypes
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentrl.tools.sandbox import Sandbox, SandboxLimits, SandboxResult, choice
from agentrl.tools.sandbox.bubblewrap import interpreter
from agentrl.tools.sandbox.plain import Plain
from tests.security.sandbox_attempts import ATTEMPTS, THROUGH, Attempt
from tests.security.sandboxes import bubblewrap

#: The first test of a sandbox makes all attempts on it.
pytestmark = pytest.mark.timeout(1800)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sandbox.md"
WORD = "a-word-that-only-the-host-knows"
AT_ONCE = 4
NAMES = {"stopped": "stopped", "not stopped": "not stopped", "namespaces": "with namespaces"}

Outcomes = dict[str, bool]


@cache
def has_namespaces() -> bool:
    """Whether the kernel lets the plain sandbox have namespaces."""
    return anyio.run(choice.has_namespaces, Plain())


@cache
def may_attach() -> bool:
    """Whether the kernel lets a process at the memory of another of its user."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return not scope.exists() or scope.read_text().strip() == "0"


# ---- the ground that attempts are made on --------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, Any]]:
    """What attempts aim at, all of it real: files, sockets, an open descriptor, a secret."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandbox-host-")))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SECRET_OF_THE_HOST", WORD)
        home = folder / "home"
        (home / ".ssh").mkdir(parents=True)
        secret = home / ".ssh" / "id_ed25519"
        secret.write_text(WORD)
        secret.chmod(0o600)
        (folder / "writable").write_text("")
        open_file = stack.enter_context(secret.open())
        os.set_inheritable(open_file.fileno(), True)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        for address in (str(folder / "socket"), f"\0{WORD}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(64)
        libc = ctypes.CDLL(None)
        semaphore = libc.semget(0, 1, 0o1600)
        stack.callback(libc.semctl, semaphore, 0, 0)  # IPC_RMID
        buffer = ctypes.create_string_buffer(WORD.encode())
        stack.callback(lambda: buffer)  # kept until then: it is read by its address
        yield {
            "word": WORD,
            "address": ctypes.addressof(buffer),
            "semaphore": semaphore,
            "home": str(home),
            "secret": str(secret),
            "writable": str(folder / "writable"),
            "folder": str(folder),
            "socket": str(folder / "socket"),
            "port": server.getsockname()[1],
            "worker": os.getpid(),
            "name": os.uname().nodename,
            "descriptor": open_file.fileno(),
        }


def program(attempt: Attempt, host: dict[str, Any]) -> str:
    return (
        "import ctypes, os, socket, sys, time\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"host = {host!r}\n"
        f"def through(): print({THROUGH!r}, flush=True)\n"
        f"{attempt.code}\n"
    )


def aims(host: dict[str, Any], column: str, other: int) -> dict[str, Any]:
    """`host`, with what only one sandbox's attempts aim at."""
    shared = Path(host["folder"]) / column
    shared.mkdir()
    return host | {"column": column, "shared": str(shared), "other": other}


def try_all(sandbox: Sandbox, column: str, host: dict[str, Any]) -> dict[str, SandboxResult]:
    """The last result of each attempt; beside them another run goes on, of which some know."""
    results: dict[str, SandboxResult] = {}

    async def one(attempt: Attempt, aim: dict[str, Any]) -> None:
        async with places:
            for _ in range(attempt.times):
                result = await sandbox.run(program(attempt, aim), attempt.limits)
        results[attempt.name] = result

    async def everything() -> None:
        async with anyio.create_task_group() as others:
            other = await begun(others, Path(host["folder"]) / f"{column}-other", column)
            aim = aims(host, column, other)
            async with anyio.create_task_group() as group:
                for attempt in ATTEMPTS:
                    group.start_soon(one, attempt, aim)
            others.cancel_scope.cancel()

    places = anyio.CapacityLimiter(AT_ONCE)
    anyio.run(everything)
    return results


async def begun(group: anyio.abc.TaskGroup, note: Path, column: str) -> int:
    """Another run of the plain sandbox, which says its process id in a file of the host."""
    sleeper = Plain(namespaces=column != "plain without namespaces")
    code = (
        "import os, time\n"
        f"with open({str(note)!r}, 'w') as file: file.write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(600)\n"
    )
    group.start_soon(sleeper.run, code, SandboxLimits(wall_s=600))
    return int(await anyio.to_thread.run_sync(written, note))


def written(note: Path) -> str:
    """What the file holds, once it does."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if note.exists() and (text := note.read_text()).endswith("\n"):
            return text
        time.sleep(0.01)
    raise AssertionError(f"nothing was written to {note}")


@pytest.fixture(scope="module")
def in_bubblewrap(host: dict[str, Any]) -> dict[str, SandboxResult]:
    return try_all(bubblewrap(), "bubblewrap", host)


@pytest.fixture(scope="module")
def in_plain(host: dict[str, Any]) -> dict[str, SandboxResult]:
    return try_all(Plain(), "plain", host)


@pytest.fixture(scope="module")
def without_namespaces(host: dict[str, Any]) -> dict[str, SandboxResult]:
    return try_all(Plain(namespaces=False), "plain without namespaces", host)


@pytest.fixture(scope="module")
def without_a_sandbox(host: dict[str, Any]) -> dict[str, str]:
    """What each attempt prints where nothing holds it."""
    said: dict[str, str] = {}

    async def one(attempt: Attempt, aim: dict[str, Any]) -> None:
        async with places:
            said[attempt.name] = await anyio.to_thread.run_sync(bare, attempt, aim)

    async def everything(aim: dict[str, Any]) -> None:
        async with anyio.create_task_group() as group:
            for attempt in ATTEMPTS:
                group.start_soon(one, attempt, aim)

    places = anyio.CapacityLimiter(AT_ONCE)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        anyio.run(everything, aims(host, "none", sleeper.pid))
    finally:
        sleeper.kill()
        sleeper.wait()
    return said


def bare(attempt: Attempt, aim: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory(dir=aim["folder"]) as folder:
        for _ in range(attempt.times):
            ended = subprocess.run(
                [interpreter(), "-S", "-c", program(attempt, aim)],
                cwd=folder,
                capture_output=True,
                text=True,
                pass_fds=[aim["descriptor"]],
                timeout=500,
            )
    return ended.stdout + ended.stderr


def got_through(result: SandboxResult) -> bool:
    # An attempt that is told to the end of its output, or cut there, has not been stopped by that.
    assert not result.timed_out or THROUGH not in result.stdout
    return THROUGH in result.stdout


# ---- what is promised ----------------------------------------------------------------------------

on_each_attempt = pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
is_root = os.geteuid() == 0
has_capabilities = "\nCapPrm:\t0000000000000000\n" not in Path("/proc/self/status").read_text()


def can_succeed(attempt: Attempt) -> bool:
    """Whether the worker's user could do on the host what is attempted."""
    if attempt.needs == "root" and "shadow" in attempt.code:
        return is_root and bool(Path("/etc/shadow").stat().st_mode & 0o400)
    if "attach" in attempt.needs and not may_attach():
        return False
    return is_root or attempt.needs != "root"


@on_each_attempt
def test_without_a_sandbox_the_attempt_succeeds(
    attempt: Attempt, without_a_sandbox: dict[str, str]
) -> None:
    if attempt.needs == "luck" or not can_succeed(attempt):
        pytest.skip("whether this succeeds depends on settings of the kernel, or needs root")
    assert THROUGH in without_a_sandbox[attempt.name], without_a_sandbox[attempt.name]


@on_each_attempt
def test_bubblewrap_stops_the_attempt(
    attempt: Attempt, in_bubblewrap: dict[str, SandboxResult]
) -> None:
    assert not got_through(in_bubblewrap[attempt.name])


@on_each_attempt
def test_the_plain_sandbox_does_what_is_said_of_it(
    attempt: Attempt, in_plain: dict[str, SandboxResult]
) -> None:
    stops = attempt.plain == "stopped" or (attempt.plain == "namespaces" and has_namespaces())
    expect(attempt, in_plain[attempt.name], stops=stops)


@on_each_attempt
def test_without_namespaces_the_plain_sandbox_stops_less(
    attempt: Attempt, without_namespaces: dict[str, SandboxResult]
) -> None:
    if "user" in attempt.needs and has_capabilities:
        pytest.skip("this worker has capabilities, which its sandbox has given up")
    expect(attempt, without_namespaces[attempt.name], stops=attempt.plain == "stopped")


def expect(attempt: Attempt, result: SandboxResult, *, stops: bool) -> None:
    if not stops and not can_succeed(attempt):
        pytest.skip("the worker's user itself may not do this")
    assert got_through(result) != stops, result


def test_the_page_prints_this_table() -> None:
    row = re.compile(r"^\| ([^|]+) \| (stopped|not stopped) \| ([a-z ]+) \|$", re.MULTILINE)
    rows = row.findall(PAGE.read_text())
    expected = [(attempt.name, "stopped", NAMES[attempt.plain]) for attempt in ATTEMPTS]
    assert rows == expected
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 45
