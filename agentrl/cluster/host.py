"""`ProcessHost`: starts, watches and stops the processes of one placement slot.

A Ray actor wraps this class on the node that Ray chose (see `placement.py`); the processes are
plain children, so that no data and no Python object ever travels through Ray. Every child is the
leader of its own session (a signal reaches all it started) and dies with the host.

    STARTED -> RUNNING -> EXITED(returncode)
"""

import contextlib
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path

import msgspec

__all__ = ["ExitNotice", "ProcessHost", "ProcessOrder", "free_ports"]


class ProcessOrder(msgspec.Struct, frozen=True):
    """A process to start: its name in the run, command, extra environment and log file."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    log: str = ""


class ExitNotice(msgspec.Struct, frozen=True):
    """A process ended. `expected`: the host itself had been told to stop it."""

    name: str
    pid: int
    returncode: int
    expected: bool


class _Child:
    def __init__(self, order: ProcessOrder, process: "subprocess.Popen[bytes]") -> None:
        self.order = order
        self.process = process
        self.expected = False
        self.done = threading.Event()


class ProcessHost:
    """Children of one slot. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}
        self._reserved: set[int] = set()
        self._exits: queue.Queue[ExitNotice] = queue.Queue()
        self._orders: queue.Queue[Callable[[], None]] = queue.Queue()
        # The kernel ties a child to the thread that forked it, so one thread forks them all.
        threading.Thread(target=self._spawn_forever, name="spawner", daemon=True).start()

    def node(self) -> tuple[str, int]:
        """Address of this node and pid of this host."""
        return _address(), os.getpid()

    def reserve_ports(self, count: int) -> list[int]:
        """`count` TCP ports that were free a moment ago, each given once by this host."""
        ports = free_ports(count, self._reserved)
        self._reserved.update(ports)
        return ports

    def write_file(self, path: str, data: bytes) -> None:
        """Write a private file (0600) on this node, for specifications and keys."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)

    def start(self, order: ProcessOrder) -> int:
        """Start a process; returns its pid. The name must not be running."""
        known = self._children.get(order.name)
        if known is not None and not known.done.is_set():
            raise RuntimeError(f"process {order.name} is already running as {known.process.pid}")
        answer: queue.Queue[int | BaseException] = queue.Queue()

        def fork() -> None:
            try:
                answer.put(self._fork(order))
            except BaseException as error:
                answer.put(error)

        self._orders.put(fork)
        result = answer.get(timeout=30)
        if isinstance(result, BaseException):
            raise result
        return result

    def next_exits(self, timeout_s: float) -> list[ExitNotice]:
        """Wait up to `timeout_s` for a process to end; every notice is given once."""
        try:
            notices = [self._exits.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while not self._exits.empty():
            notices.append(self._exits.get_nowait())
        return notices

    def stop(self, names: list[str] | None = None, grace_s: float = 5.0) -> dict[str, int]:
        """SIGTERM, then SIGKILL after `grace_s`, to the sessions of `names` (default: all).

        Returns the return code of each. Returns only when every one of them has ended.
        """
        chosen = [c for n, c in self._children.items() if names is None or n in names]
        for child in chosen:
            child.expected = True
            _signal_session(child.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for child in chosen:
            if not child.done.wait(max(0.0, deadline - time.monotonic())):
                _signal_session(child.process.pid, signal.SIGKILL)
        for child in chosen:
            child.done.wait(5.0)
        return {c.order.name: c.process.returncode for c in chosen}

    def signal(self, name: str, number: int) -> None:
        """Send a signal to one process (not to its session)."""
        child = self._children[name]
        if not child.done.is_set():
            child.process.send_signal(number)

    def _spawn_forever(self) -> None:
        while True:
            self._orders.get()()

    def _fork(self, order: ProcessOrder) -> int:
        env = os.environ | order.env
        argv = [sys.executable, "-m", "agentrl.cluster.child", str(os.getpid()), *order.argv]
        log = order.log or os.devnull
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("ab") as stream:
            process = subprocess.Popen(  # noqa: S603 - our own commands, no shell
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = _Child(order, process)
        self._children[order.name] = child
        threading.Thread(target=self._watch, args=(child,), daemon=True).start()
        return process.pid

    def _watch(self, child: _Child) -> None:
        code = child.process.wait()
        # Whatever it had started must not outlive it: its place may be taken by a successor.
        _signal_session(child.process.pid, signal.SIGKILL)
        child.done.set()
        self._exits.put(ExitNotice(child.order.name, child.process.pid, code, child.expected))


def free_ports(count: int, taken: Container[int] = ()) -> list[int]:
    """`count` different TCP ports that are free now and not among `taken`.

    None is of the range from which the kernel takes ports for outgoing connections: such a port may
    be gone before its process listens, or when it is started again.
    """
    low = _first_ephemeral_port()
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(low // 2, low)
        if port not in taken and port not in ports and _is_free(port):
            ports.append(port)
    return ports


def _first_ephemeral_port() -> int:
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    return low if low >= 4096 else 32768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _signal_session(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _address() -> str:
    """The address other nodes reach this one at, as Ray knows it; loopback outside Ray."""
    try:
        import ray.util

        return str(ray.util.get_node_ip_address())
    except Exception:
        return "127.0.0.1"
