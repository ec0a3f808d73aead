"""The warm process of `cell.py`: forks for each call, and sees how each fork ends.

    python -m agentrl.envs.grading.cell_process FD

Takes the name of a rule's module and the socket of a call from FD, and gives the socket to a fork,
whose time and memory the kernel bounds; ends when FD is closed and no call is left. A fork writes
its answer; of one that was killed this process writes how, on a line behind what it wrote. The fork
of a call whose caller has closed the socket is killed.

A module is imported here once, before the fork. A fork tries the import first: this process has to
survive every module, and must have no threads when it forks. A module that fails is tried again at
the next call.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

from agentrl.envs.grading.cell import CPU_S, MAX_BYTES, WALL_S, RuleError

#: What takes long to import, and a fork shall have.
WARM = ("sympy", "sympy.parsing.sympy_parser")
#: The exit code of a trial that has told what it found, and the characters that it may tell.
_IMPORTED, _MAX_TOLD = 73, 8_000


def main(fd: int) -> None:
    """Serve until nobody asks any more."""
    ended, wake = socket.socketpair()
    ended.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in WARM:
        importlib.import_module(name)
    calls: dict[int, int] = {}
    with socket.socket(fileno=fd) as control:
        asked = select.poll()  # select() takes no descriptor from 1024 on
        asked.register(control, select.POLLIN)
        asked.register(ended, select.POLLIN)
        is_open = True
        while is_open or calls:
            ready = [number for number, _ in asked.poll()]
            for child, call in calls.items():
                if call in ready:  # nobody waits for it any more
                    os.kill(child, signal.SIGKILL)
                    asked.unregister(call)
            if ended.fileno() in ready:
                ended.recv(65536)
                _bury(calls, asked)
            if fd not in ready:
                continue
            word, fds, _, _ = socket.recv_fds(control, 65536, 1)
            if not word:
                asked.unregister(control)
                is_open = False
                continue
            why_not = _imported(word.decode())
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                for other in (*calls.values(), control.detach(), ended.detach(), wake.detach()):
                    os.close(other)
                _serve(fds[0], why_not)
            calls[child] = fds[0]
            asked.register(fds[0], 0)  # POLLHUP is told unasked


def _imported(name: str) -> str:
    """Import the module, or say why it cannot be imported."""
    if name in sys.modules:
        return ""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as told:
        trial = os.fork()
        if trial == 0:
            _try(name, writing)
        os.close(writing)
        _, status = os.waitpid(trial, 0)
        os.set_blocking(reading, False)  # a process that the module started may hold the other end
        if why := (told.read1(_MAX_TOLD * 4) or b"").decode():
            return why
    if os.WIFSIGNALED(status):
        return f"the import was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if os.waitstatus_to_exitcode(status) != _IMPORTED:
        return "the module ends the process that imports it"
    try:
        importlib.import_module(name)
    except BaseException:
        return traceback.format_exc()
    return ""


def _try(name: str, told: int) -> None:
    """Import the module, say what speaks against it, and end."""
    why = ""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.alarm(int(WALL_S))
        importlib.import_module(name)
        num_threads = len(list(Path("/proc/self/task").iterdir()))
        if num_threads > 1:
            why = (
                f"it has started {num_threads - 1} threads, and a process with threads cannot be "
                "forked for each call: start them in the rule"
            )
    except BaseException:
        why = traceback.format_exc()
    finally:
        os.write(told, why[-_MAX_TOLD:].encode("utf-8", "replace"))
        os._exit(_IMPORTED)


def _bury(calls: dict[int, int], asked: select.poll) -> None:
    """Close the calls whose forks have ended; tell of those that were killed."""
    for child in list(calls):
        is_ended, status, used = os.wait4(child, os.WNOHANG)
        if not is_ended:
            continue
        with socket.socket(fileno=calls.pop(child)) as call:
            with contextlib.suppress(KeyError):  # its caller had gone
                asked.unregister(call)
            if not os.WIFSIGNALED(status):
                continue
            by = signal.Signals(os.WTERMSIG(status))
            has_spent = by is signal.SIGKILL and used.ru_utime + used.ru_stime >= CPU_S
            is_late = by is signal.SIGXCPU or has_spent
            told = {"died": True} if is_late else {"ended": f"it was ended by {by.name}"}
            with contextlib.suppress(OSError):  # nobody waits for it any more
                call.send(b"\n" + json.dumps(told).encode(), socket.MSG_DONTWAIT)


def _serve(fd: int, why_not: str) -> None:
    """Answer one call and end; `why_not` says why its module is not here."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=fd) as call:
            request = b""
            while part := call.recv(65536):
                request += part
            told = json.dumps({"unimportable": why_not}).encode() if why_not else _answer(request)
            call.sendall(told)
    finally:
        os._exit(0)


def _answer(request: bytes) -> bytes:
    said: dict[str, object]
    try:
        call = json.loads(request)
        function = getattr(importlib.import_module(call["module"]), call["rule"]).__wrapped__
        return json.dumps({"value": function(*call["arguments"])}).encode()
    except RuleError as error:
        said = {"refused": str(error)}
    except (MemoryError, RecursionError):
        said = {"died": True}
    except Exception:
        said = {"broken": traceback.format_exc()}
    return json.dumps(said).encode()


if __name__ == "__main__":
    main(int(sys.argv[1]))
