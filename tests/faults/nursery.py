"""Where the processes of a lab are born: by fork from a process that has imported everything.

    a line on stdin   {"name", "argv", "env", "log"}   ->  {"name", "born": pid}
    a child ends                                       ->  {"died": pid, "code"}

Starting a process then takes milliseconds instead of seconds, and a test can afford many faults.
The nursery has one thread, so that a fork takes nothing half done along. Children lead their own
session and die with it.
"""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from agentrl.child import PR_SET_PDEATHSIG

__all__ = ["Birth", "Nursery"]

ROOT = Path(__file__).parents[2]
#: Seconds for a fork to be answered, the import of everything before the first one included.
BIRTH_S = 300.0


class Birth(msgspec.Struct, frozen=True):
    """A process to start. `argv[0]` says which main of `tests.faults.mains` it runs."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: str


class Nursery:
    """The nursery, from the side of a test. `with Nursery() as nursery`. `environment`: what it and
    all that are born there have beside that of this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._codes: dict[int, int] = {}
        self._born: dict[str, int] = {}
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
        )
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._listener.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, birth: Birth) -> int:
        """The pid of the new process. One birth of a name at a time."""
        assert self._process.stdin is not None
        with self._news:
            self._born.pop(birth.name, None)
            self._process.stdin.write(msgspec.json.encode(birth) + b"\n")
            self._process.stdin.flush()
            is_born = self._news.wait_for(lambda: birth.name in self._born, BIRTH_S)
            assert is_born, f"{birth.name} was not born within {BIRTH_S:g} s"
            return self._born[birth.name]

    def code(self, pid: int) -> int | None:
        """How a process ended, as `subprocess` says it; None while it lives."""
        with self._news:
            return self._codes.get(pid)

    def wait(self, pid: int, deadline_s: float) -> int:
        """The exit code of a process, once it has ended."""
        with self._news:
            ended = self._news.wait_for(lambda: pid in self._codes, deadline_s)
            assert ended, f"process {pid} has not ended within {deadline_s:g} s"
            return self._codes[pid]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told: dict[str, Any] = msgspec.json.decode(line)
            with self._news:
                if "born" in told:
                    self._born[told["name"]] = told["born"]
                    # the kernel may give the number of a process that has ended again
                    self._codes.pop(told["born"], None)
                else:
                    self._codes[told["died"]] = told["code"]
                self._news.notify_all()


# ---- in the nursery ----------------------------------------------------------------------------


def _tell(**facts: Any) -> None:
    os.write(1, msgspec.json.encode(facts) + b"\n")


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell(died=pid, code=os.waitstatus_to_exitcode(status))


def _fork(birth: Birth, parent: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _live_with(parent)
        _speak_into(birth.log)
        os.environ.update(birth.env)
        from tests.faults.mains import run

        code = run(birth.argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _live_with(parent: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _speak_into(log: str) -> None:
    silence, file = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    for source, target in ((silence, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.closerange(3, 256)


def main() -> None:
    """Fork what stdin asks for until it is closed; then end all that is left."""
    import tests.faults.mains as mains

    mains.preload()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writer)
    children: set[int] = set()
    buffered = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if reader in ready:
                os.read(reader, 4096)
                _reap(children)
            if 0 not in ready:
                continue
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines:
                birth = msgspec.json.decode(line, type=Birth)
                child = _fork(birth, os.getpid())
                children.add(child)
                _tell(name=birth.name, born=child)
            _reap(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while children and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, 0)
        children.discard(pid)


if __name__ == "__main__":
    main()
