"""The warm process of `cell.py`: forks for each call, and sees how each fork ends.

    python -m agentrl.envs.grading.cell_process FD

Takes the socket of a call from FD and gives it to a fork, whose time and memory the kernel bounds;
ends when FD is closed. A module of rules is imported here once, so that a fork has it. A fork
writes its answer; of one that was killed this process writes how, on a line behind what it wrote.
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

from agentrl.envs.grading.cell import CPU_S, MAX_BYTES, RuleError

#: What takes long to import, and a fork shall have.
WARM = ("sympy", "sympy.parsing.sympy_parser")


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
        while True:
            ready = [number for number, _ in asked.poll()]
            if ended.fileno() in ready:
                ended.recv(65536)
                _bury(calls)
            if fd not in ready:
                continue
            word, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not word:
                return
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                for other in (*calls.values(), control.detach(), ended.detach(), wake.detach()):
                    os.close(other)
                _serve(fds[0])
            calls[child] = fds[0]


def _bury(calls: dict[int, int]) -> None:
    """Close the calls whose forks have ended; tell of those that were killed."""
    for child in list(calls):
        is_ended, status, used = os.wait4(child, os.WNOHANG)
        if not is_ended:
            continue
        with socket.socket(fileno=calls.pop(child)) as call:
            if not os.WIFSIGNALED(status):
                continue
            by = signal.Signals(os.WTERMSIG(status))
            has_spent = by is signal.SIGKILL and used.ru_utime + used.ru_stime >= CPU_S
            is_late = by is signal.SIGXCPU or has_spent
            told = {"died": True} if is_late else {"ended": f"it was ended by {by.name}"}
            with contextlib.suppress(OSError):  # nobody waits for it any more
                call.send(b"\n" + json.dumps(told).encode(), socket.MSG_DONTWAIT)


def _serve(fd: int) -> None:
    """Answer one call and end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=fd) as call:
            request = b""
            while part := call.recv(65536):
                request += part
            call.sendall(_answer(request))
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
