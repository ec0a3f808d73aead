"""A program and all that it starts: run to its end, and ended with all of it.

A process belongs to a program when it bears the program's mark in its environment, is in its
session, or is a child of one that belongs. What it starts in the background, in a session of its
own too, is found by the mark. A process that has cleared its environment, left the session and lost
its parent is not: this keeps order, it is no sandbox.

The kernel gives the number of a process that has gone to another one: a process is known by its
number together with the time of its start.
"""

import errno
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from agentrl.errors import EnvError

__all__ = [
    "TAIL_BYTES",
    "Ended",
    "children",
    "end_all",
    "end_children",
    "find_all",
    "run_program",
    "start_time",
]

#: Bytes of what a program prints that are kept, the last ones.
TAIL_BYTES = 64 * 1024
#: Seconds that the kernel has to end what was killed.
_END_S = 10.0
_PROC = Path("/proc")
#: What the kernel says of a number that is no process any more.
_GONE = {errno.ESRCH, errno.ENOENT, errno.EINVAL}
#: Threads of its own: what ends programs must not wait for the threads of users' code.
_THREADS = anyio.CapacityLimiter(8)


class Ended(msgspec.Struct, frozen=True):
    """A program that has ended: its exit code (negative: the signal), the tails of its output."""

    code: int
    stdout: str
    stderr: str


async def run_program(
    argv: Sequence[str], stdin: bytes, environment: Mapping[str, str], mark: str
) -> Ended:
    """Run `argv`, without a shell, to its end; then, or when cancelled, end all that it started.

    `mark` is the name of a variable of `environment` whose value is this program's alone. Raises
    EnvError where it cannot be started, OSError where what it started cannot be ended.
    """
    entry = f"{mark}={environment[mark]}".encode()
    # Cancelled half-way, it would leave processes that nobody knows.
    with anyio.CancelScope(shield=True):
        try:
            process = await anyio.open_process(argv, env=environment, start_new_session=True)
        except OSError as error:
            raise EnvError(f"{argv[0]} cannot be run: {error}") from error
    started = None
    outputs = bytearray(), bytearray()
    try:
        started = start_time(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with anyio.create_task_group() as group:
            group.start_soon(_feed, process.stdin, stdin)
            group.start_soon(_keep_tail, process.stdout, outputs[0])
            group.start_soon(_keep_tail, process.stderr, outputs[1])
            code = await process.wait()
            # whoever still holds the pipes would keep the readers waiting
            await _end(process, started, entry)
    finally:
        with anyio.CancelScope(shield=True):
            await _end_and_close(process, started, entry)
    stdout, stderr = (output.decode("utf-8", "replace") for output in outputs)
    return Ended(code, stdout, stderr)


async def _end(process: Process, started: int | None, entry: bytes) -> None:
    await anyio.to_thread.run_sync(end_all, process.pid, started, entry, limiter=_THREADS)


async def _end_and_close(process: Process, started: int | None, entry: bytes) -> None:
    try:
        await _end(process, started, entry)
    except OSError:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    finally:
        # `aclose` alone would wait without end for a process that the kernel cannot end
        with anyio.move_on_after(_END_S):
            await process.wait()
            await process.aclose()


def end_all(session: int | None, started: int | None, entry: bytes) -> None:
    """Kill every process of `session` (None: of none), or with `entry` (as in `NAME=value`) in its
    environment, and their children, until there is none but those that may not be killed. Blocks
    until they are gone.

    `started` is the `start_time` of the session's leader, None where it had gone before. Raises
    TimeoutError when a killed process does not end.
    """
    while found := _members(session, started, entry):
        fds: list[int] = []
        try:
            num_refused = _kill_all(found, fds)
            _await_end(fds)
        finally:
            for fd in fds:
                os.close(fd)
        if num_refused == len(found):
            return


def find_all(entry: bytes) -> list[int]:
    """The processes with `entry` in their environment, and their children."""
    return sorted(_members(None, None, entry))


def children() -> dict[int, int]:
    """The running processes that this one has started, each with its `start_time`; one that was
    forked shows no mark that was set later than this one began."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    own = os.getpid()
    return {pid: stat.started for pid, stat in stats.items() if stat.parent == own and stat.runs}


def end_children(but: Mapping[int, int]) -> None:
    """Kill `children` that are none of `but`, and wait until they are gone; what they have started
    in turn is left alone. Raises TimeoutError as `end_all`."""
    fds: list[int] = []
    try:
        _kill_all(dict(children().items() - but.items()), fds)
        _await_end(fds)
    finally:
        for fd in fds:
            os.close(fd)


def start_time(pid: int) -> int | None:
    """When the process was started, in clock ticks since the boot; None where there is none."""
    stat = _stat(pid)
    return None if stat is None else stat.started


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


class _Stat(msgspec.Struct, frozen=True):
    """What /proc says of a process: see proc_pid_stat(5)."""

    state: bytes
    parent: int
    session: int
    num_threads: int
    started: int

    @property
    def runs(self) -> bool:
        # the first thread of a process may have ended while others run
        return self.state != b"X" and (self.state != b"Z" or self.num_threads > 1)


def _stat(pid: int) -> _Stat | None:
    try:
        fields = (_PROC / f"{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the manual counts from 1, and the number and the name are gone
    parent, session, num_threads, started = (int(fields[n - 3]) for n in (4, 6, 20, 22))
    return _Stat(fields[0], parent, session, num_threads, started)


def _members(session: int | None, started: int | None, entry: bytes) -> dict[int, int]:
    """The processes to end, each with the time of its start."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    leader = None if session is None else stats.get(session)
    # A number is not given again while its session has members: another leader means no member.
    # No number stands for no session: the kernel says 0 of what is not in this namespace, and -1 of
    # a process that goes as it is looked at.
    is_ours = session is not None and (leader is None or leader.started == started)
    running = {pid: stat for pid, stat in stats.items() if stat.runs}
    found = {
        pid
        for pid, stat in running.items()
        if (is_ours and stat.session == session) or entry in _environment(pid, stat)
    }
    num_found = 0
    while num_found < len(found):
        num_found = len(found)
        found |= {pid for pid, stat in running.items() if stat.parent in found}
    return {pid: running[pid].started for pid in found - {os.getpid()}}


def _environment(pid: int, stat: _Stat) -> list[bytes]:
    folders = [_PROC / str(pid)]
    if stat.state == b"Z":
        # a first thread that has ended has none, the others still do
        with suppress(OSError):
            folders += (folders[0] / "task").iterdir()
    for folder in folders:
        with suppress(OSError):
            if environment := (folder / "environ").read_bytes():
                return environment.split(b"\0")
    return []


def _kill_all(found: Mapping[int, int], fds: list[int]) -> int:
    """Kill them, adding to `fds` a file descriptor of each; how many may not be killed."""
    num_refused = 0
    for pid, started in found.items():
        try:
            fds.append(_kill(pid, started))
        except PermissionError:
            num_refused += 1
        except OSError as error:
            if error.errno not in _GONE:
                raise
    return num_refused


def _kill(pid: int, started: int) -> int:
    fd = os.pidfd_open(pid)
    try:
        # looked at again now that the descriptor holds whoever has the number
        if start_time(pid) != started:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has gone")
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        os.close(fd)
        raise
    return fd


def _await_end(fds: Sequence[int]) -> None:
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    num_left = len(fds)
    while num_left:
        ended = waiting.poll(_END_S * 1000)
        if not ended:
            raise TimeoutError(f"{num_left} killed processes did not end within {_END_S:g} s")
        for fd, _ in ended:
            waiting.unregister(fd)
        num_left -= len(ended)


async def _feed(stream: ByteSendStream, data: bytes) -> None:
    try:
        await stream.send(data)
        await stream.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it does not read its input


async def _keep_tail(stream: ByteReceiveStream, kept: bytearray) -> None:
    async for data in stream:
        kept += data
        del kept[:-TAIL_BYTES]
