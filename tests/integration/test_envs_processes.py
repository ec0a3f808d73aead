"""What a program has started is ended, all of it, and nobody else is."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest

from agentrl.envs.processes import end_all, find_all, run_program, start_time
from agentrl.errors import EnvError

pytestmark = pytest.mark.anyio

MARK = "AGENTRL_TEST_MARK"
#: A process whose first thread ends, and which says so while another goes on.
HEADLESS = """
import ctypes, threading, time

def go_on():
    while open("/proc/self/stat").read().rpartition(") ")[2][0] != "Z":
        time.sleep(0.01)
    print("up", flush=True)
    time.sleep(600)

threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """With a mark; whatever still bears it afterwards is killed, by other means than ours."""
    marked = os.environ | {MARK: os.urandom(8).hex()}
    yield marked
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK) == marked[MARK]:
            process.kill()


def entry_of(environment: dict[str, str]) -> bytes:
    return f"{MARK}={environment[MARK]}".encode()


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own; it has said a line before this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process


SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


def num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def runs(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


async def test_a_program_cancelled_while_it_starts_leaves_no_process(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "up")
    script = f"setsid sleep 600 & echo $! > {tmp_path}/up; wait"
    others = psutil.Process().children()
    async with anyio.create_task_group() as group:
        group.start_soon(run_program, ["sh", "-c", script], b"", environment, MARK)
        while psutil.Process().children() == others:
            await anyio.lowlevel.checkpoint()
        # waits in the loop's own thread: the start cannot go on
        pid = int((tmp_path / "up").read_text())
        group.cancel_scope.cancel()
    assert not runs(pid)


async def test_what_cannot_be_started_is_an_env_error(environment: dict[str, str]) -> None:
    with pytest.raises(EnvError, match=r"no-such-program cannot be run: .*No such file"):
        await run_program(["no-such-program"], b"", environment, MARK)


def test_a_process_whose_first_thread_has_ended_is_ended(environment: dict[str, str]) -> None:
    by_session = start(HEADLESS, dict(os.environ))
    by_mark = start(HEADLESS, environment)
    try:
        end_all(by_session.pid, start_time(by_session.pid), entry_of(environment))
        assert not psutil.Process(by_session.pid).threads()[1:]
        assert not psutil.Process(by_mark.pid).threads()[1:]
    finally:
        for process in (by_session, by_mark):
            process.kill()
            process.wait(300)


def test_a_session_whose_number_another_leader_has_is_not_ended(
    environment: dict[str, str],
) -> None:
    foreign = start(SLEEPS, dict(os.environ))
    try:
        earlier = (start_time(foreign.pid) or 0) - 1
        for started in (earlier, None):
            end_all(foreign.pid, started, entry_of(environment))
            assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(300)


def test_who_has_taken_the_number_since_the_scan_is_not_killed(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, foreign = start(SLEEPS, environment), start(SLEEPS, dict(os.environ))

    def late(pid: int) -> int:
        ours.kill()
        ours.wait(300)
        return opened(foreign.pid)

    opened = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", late)
    try:
        end_all(ours.pid, start_time(ours.pid), entry_of(environment))
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(300)


def test_who_was_started_by_one_that_has_since_gone_is_ended(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = [start(SLEEPS, environment)]

    def late(pid: int) -> int:
        if len(started) == 1:
            started.append(start(SLEEPS, environment))
            started[0].kill()
            started[0].wait(300)
        return opened(pid)

    opened = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", late)
    end_all(started[0].pid, start_time(started[0].pid), entry_of(environment))
    assert not runs(started[1].pid)
    assert started[1].wait(300) == -signal.SIGKILL


def test_those_that_may_not_be_killed_are_left(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(SLEEPS, environment)

    def refuse(fd: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "another user's")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    try:
        end_all(process.pid, start_time(process.pid), entry_of(environment))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(300)


async def test_a_program_ends_while_all_threads_of_users_are_taken(
    environment: dict[str, str],
) -> None:
    limiter = anyio.to_thread.current_default_thread_limiter()
    taken = [object() for _ in range(int(limiter.available_tokens))]
    has_ended = anyio.Event()

    async def run() -> None:
        await run_program(["true"], b"", environment, MARK)
        has_ended.set()

    for borrower in taken:
        limiter.acquire_on_behalf_of_nowait(borrower)
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        with anyio.move_on_after(300) as deadline:
            await has_ended.wait()
        # its end is shielded: where it waits for these, nothing else lets it go on
        for borrower in taken:
            limiter.release_on_behalf_of(borrower)
    assert not deadline.cancelled_caught


async def test_a_program_that_cannot_be_ended_is_closed_and_said_so(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = num_files()
    monkeypatch.setattr("agentrl.envs.processes.end_all", full)
    with pytest.raises(OSError, match="Too many open files"):
        await run_program(["sh", "-c", "sleep 600 & exit 0"], b"", environment, MARK)
    await anyio.wait_all_tasks_blocked()
    # its child holds the other ends
    assert num_files() <= before


@pytest.mark.parametrize("session", [-1, 0])
def test_where_no_session_is_meant_none_that_the_kernel_can_name_is_taken(
    session: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says -1 of a process that goes as it is looked at; its children are not ours to kill."""
    monkeypatch.setattr("agentrl.envs.processes._PROC", tmp_path)
    for pid, parent, entry in ((70, 1, b""), (60, 70, b""), (80, 1, b"NAME=ours"), (50, 80, b"")):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", parent, pid, session, *[0] * 13, 1, 0, 9]
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (x) {' '.join(map(str, fields))}")
        (tmp_path / f"{pid}/environ").write_bytes(entry + b"\0")
    assert find_all(b"NAME=ours") == [50, 80]
