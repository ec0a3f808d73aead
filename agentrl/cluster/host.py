"""`ProcessHost`: starts, watches and stops the processes of one placement slot.

A Ray actor wraps this class on the node that Ray chose (see `placement.py`); the processes are
plain children, so that no data and no Python object ever travels through Ray. Every child is the
leader of its own session (a signal reaches all it started) and dies with the host.

    STARTED -> RUNNING -> EXITED(returncode)

A call whose answer was lost may be made again: a start of the same process is one start, however
often it is ordered, and an end is told until it is acknowledged (`exits.py`).

A child keeps its number until `_watch` has reaped it; only until then is it signalled, because the
number may be another's afterwards.
"""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec

from agentrl.cluster.exits import ExitNotice, Exits
from agentrl.cluster.here import interface_of, place_here
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.node_facts import facts_here
from agentrl.cluster.oom_kills import OomKills
from agentrl.cluster.ports import free_ports
from agentrl.cluster.slots import NodePlace
from agentrl.disk import make_folder, narrow
from agentrl.errors import InfrastructureError

__all__ = [
    "INCARNATION",
    "ExitNotice",
    "ProcessHost",
    "ProcessOrder",
    "environment_of",
]


#: Environment variable of every process of a run: which process of its name it is.
INCARNATION = "AGENTRL_INCARNATION"
#: In the environment of a host, the devices that Ray has given it.
_SEEN = "CUDA_VISIBLE_DEVICES"


class ProcessOrder(msgspec.Struct, frozen=True):
    """A process to start: its name in the run, command, extra environment and log file.

    `kind`: what its end means, whatever its name. `ready_url`: answers 200 once it is ready; empty:
    nobody waits for it.

    `env_defaults`: variables for a node whose own environment does not have them.

    `interface_variables`: such ones too, for the name of the network interface that has the node's
    address.

    `devices`: of those that its host has, the number of the first and of those behind the last that
    it sees; None: all.

    `folder`: where it is started; empty: where this host is.

    `scratch`: a folder for its temporary files and sockets, made anew for it (0700) and removed
    when it has ended, however it ended. Empty: the system's, which nobody cleans.

    `expendable`: it has nothing to save, so it is stopped by SIGKILL, and when the others of its
    host that are stopped with it, and may still ask it something, have ended.
    """

    name: str
    argv: tuple[str, ...]
    kind: ProcessKind
    env: dict[str, str] = {}
    log: str = ""
    folder: str = ""
    scratch: str = ""
    expendable: bool = False
    env_defaults: dict[str, str] = {}
    interface_variables: tuple[str, ...] = ()
    ready_url: str = ""
    devices: tuple[int, int] | None = None

    @property
    def incarnation(self) -> str:
        """Which process of its name it is to be; empty: another each time."""
        return self.env.get(INCARNATION, "")

    def remove_scratch(self) -> None:
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


def environment_of(order: ProcessOrder, node: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process on a node whose own is `node`."""
    seen = node.get(_SEEN, "").split(",")
    part = {} if order.devices is None else {_SEEN: ",".join(seen[slice(*order.devices)])}
    return {**order.env_defaults, **node, **part, **order.env}


class _Child:
    def __init__(self, order: ProcessOrder, process: "subprocess.Popen[bytes]") -> None:
        self.order = order
        self.process = process
        self.expected = False
        self.oom_kills = OomKills(process.pid)
        self.done = threading.Event()
        self.reaping = threading.Lock()

    def signal(self, number: int, send: Callable[[int, int], None]) -> bool:
        """Send a signal, unless it has ended. Whether it was sent."""
        with self.reaping:
            if self.done.is_set():
                return False
            with contextlib.suppress(ProcessLookupError):
                send(self.process.pid, number)
            return True


class ProcessHost:
    """Children of one slot. Methods may be called from any thread.

    `environment`: variables that this process has otherwise than its children are to have them
    (None: not at all). `kill_s`: seconds that a process may take to end after SIGKILL; `start_s`:
    that whoever orders one waits for it to start.
    """

    def __init__(
        self,
        environment: Mapping[str, str | None] | None = None,
        kill_s: float = 10.0,
        start_s: float = 30.0,
    ) -> None:
        self._environment = dict(environment or {})
        self._kill_s, self._start_s = kill_s, start_s
        self._written: list[Path] = []
        self._made: list[Path] = []
        self._children: dict[str, _Child] = {}
        self._exits = Exits()
        #: By name and incarnation, the starts that were ordered.
        self._starts: dict[tuple[str, str], Future[int]] = {}
        self._starting = threading.Lock()
        self._orders: queue.Queue[Callable[[], None]] = queue.Queue()
        # The kernel ties a child to the thread that forked it, so one thread forks them all.
        threading.Thread(target=self._spawn_forever, name="spawner", daemon=True).start()

    def place(self) -> NodePlace:
        """Where this host is."""
        return place_here()

    def free_ports(self, count: int, taken: list[int], within: range | None) -> list[int]:
        """TCP ports of this node; see `free_ports`."""
        return free_ports(count, taken, within)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a private file (0600) on this node, for specifications and keys; it ends with the
        last process (`stop`), and the folders that were made for it. Who reads it meanwhile reads
        all of the one or the other."""
        target = Path(path)
        for folder in reversed(target.parents):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                self._made.append(folder)
        self._written.append(target)
        handle, new = tempfile.mkstemp(prefix=".new-", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(new).replace(target)

    def facts(self, paths: list[str], places: list[tuple[str, str]]) -> bytes:
        """What this node is like; see `facts_here`."""
        return facts_here(paths, places)

    def start(self, order: ProcessOrder) -> int:
        """Start a process; returns its pid. Ordered again, in the same incarnation, it is the same
        process, whether it is about to start, runs or has ended; another must not run under its
        name. Raises TimeoutError where it has not started yet, as when a disk hangs: order it
        again."""
        return self._start_of(order).result(self._start_s)

    def _start_of(self, order: ProcessOrder) -> "Future[int]":
        which = order.name, order.incarnation
        with self._starting:
            if order.incarnation and which in self._starts:
                return self._starts[which]
            known = self._children.get(order.name)
            if known is not None and not known.done.is_set():
                raise RuntimeError(
                    f"process {order.name} is already running as {known.process.pid}"
                )
            started: Future[int] = Future()

            def fork() -> None:
                try:
                    started.set_result(self._fork(order))
                except BaseException as error:
                    self._starts.pop(which, None)
                    started.set_exception(error)

            self._starts[which] = started
            self._orders.put(fork)
            return started

    def next_exits(self, after: int, timeout_s: float) -> list[ExitNotice]:
        """Processes that have ended, without the first `after`, of which the caller knows. Waits
        up to `timeout_s` for one. What is not acknowledged so is told again."""
        return self._exits.after(after, timeout_s)

    def stop(self, names: list[str] | None = None, grace_s: float = 5.0) -> dict[str, int]:
        """SIGTERM, then SIGKILL after `grace_s`, to the sessions of `names` (default: all, and what
        was written for them is removed). Expendable ones get the second alone.

        Returns the return code of each, when every one of them has ended. Raises
        InfrastructureError that names those that SIGKILL did not end either.
        """
        chosen = [c for n, c in self._children.items() if names is None or n in names]
        asked = [child for child in chosen if not child.order.expendable]
        for child in chosen:
            child.expected = True
        for child in asked:
            child.signal(signal.SIGTERM, os.killpg)
        _await(asked, grace_s)
        for child in chosen:
            child.signal(signal.SIGKILL, os.killpg)
        _await(chosen, self._kill_s)
        if names is None:
            self._remove_files()
        if left := [c for c in chosen if not c.done.is_set()]:
            told = ", ".join(f"{c.order.name} (pid {c.process.pid})" for c in left)
            raise InfrastructureError(
                f"{told} did not end within {self._kill_s:g} s of SIGKILL: the kernel waits for a "
                "disk or a device on its behalf"
            )
        return {c.order.name: c.process.returncode for c in chosen}

    def signal(self, name: str, number: int, pid: int | None = None) -> bool:
        """Send a signal to one process (not to its session); not to a successor of the one with
        `pid`. Whether it was sent: the process had not ended."""
        child = self._children[name]
        if pid not in (None, child.process.pid):
            return False
        return child.signal(number, os.kill)

    def _remove_files(self) -> None:
        for file in self._written:
            file.unlink(missing_ok=True)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # somebody else's files are in it, or it is gone
                folder.rmdir()
        self._written.clear()
        self._made.clear()

    def _spawn_forever(self) -> None:
        while True:
            self._orders.get()()

    def _fork(self, order: ProcessOrder) -> int:
        inherited = os.environ | self._environment
        node = {name: value for name, value in inherited.items() if value is not None}
        env = environment_of(order, self._interfaces(order) | node)
        if order.scratch:
            order.remove_scratch()
            Path(order.scratch).mkdir(mode=0o700, parents=True)
            env["TMPDIR"] = order.scratch
        argv = [sys.executable, "-m", "agentrl.child", str(os.getpid()), *order.argv]
        log = order.log or os.devnull
        if order.log:
            make_folder(Path(log).parent, 0o700)
        with Path(log).open("ab") as stream:
            if order.log:
                narrow(Path(log))
            process = subprocess.Popen(  # noqa: S603 - our own commands, no shell
                argv,
                env=env,
                cwd=order.folder or None,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = _Child(order, process)
        self._children[order.name] = child
        threading.Thread(target=self._watch, args=(child,), daemon=True).start()
        return process.pid

    def _interfaces(self, order: ProcessOrder) -> dict[str, str]:
        if not order.interface_variables:
            return {}
        interface = interface_of(place_here().address)
        return {} if interface is None else dict.fromkeys(order.interface_variables, interface)

    def _watch(self, child: _Child) -> None:
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        # Whatever it had started must not outlive it: its place may be taken by a successor.
        child.signal(signal.SIGKILL, os.killpg)
        child.order.remove_scratch()
        with child.reaping:
            code = child.process.wait()
            child.done.set()
        order, pid, expected = child.order, child.process.pid, child.expected
        starved = code == -signal.SIGKILL and not expected and child.oom_kills.have_risen()
        self._exits.add(ExitNotice(order.name, pid, code, expected, order.kind, starved))


def _await(children: Iterable[_Child], timeout_s: float) -> None:
    """Wait until all have ended, at most so long."""
    deadline = time.monotonic() + timeout_s
    for child in children:
        child.done.wait(max(0.0, deadline - time.monotonic()))
