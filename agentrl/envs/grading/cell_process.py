"""The warm process of `cell.py`: forks for each call, and does nothing else.

    python -m agentrl.envs.grading.cell_process FD

Takes the socket of a call from FD and gives it to a fork, whose time and memory the kernel bounds;
ends when FD is closed. A module of rules is imported here once, so that a fork has it.
"""

import importlib
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

from agentrl.envs.grading.cell import CPU_S, MAX_BYTES, RuleError

#: What takes long to import, and a fork shall have.
WARM = ("sympy", "sympy.parsing.sympy_parser")


def main(fd: int) -> None:
    """Serve until nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in WARM:
        importlib.import_module(name)
    with socket.socket(fileno=fd) as control:
        while True:
            word, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not word:
                return
            if os.fork() == 0:
                control.close()
                _serve(fds[0])
            os.close(fds[0])


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
            call.sendall(json.dumps(_answer(**json.loads(request))).encode())
    finally:
        os._exit(0)


def _answer(module: str, rule: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        function = getattr(importlib.import_module(module), rule).__wrapped__
        return {"value": function(*arguments)}
    except RuleError as error:
        return {"refused": str(error)}
    except (MemoryError, RecursionError):
        return {"died": True}


if __name__ == "__main__":
    main(int(sys.argv[1]))
