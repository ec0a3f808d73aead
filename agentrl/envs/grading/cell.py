"""Rules for hostile text, each call in a process of its own that can be killed.

    asked -> a warm process forks -> the fork answers and ends | is killed -> an answer, or none

A model may write what makes a parser think for years or fill the memory. So a rule never runs in
the process that asks: one process per asking process has the rules imported (`cell_process.py`),
and forks for each call. The fork may use CPU_S seconds of a processor and MAX_BYTES of memory, of
which the kernel knows, so that no text can talk itself out of it. Time of a busy host is not the
text's fault: a call that is not answered within WALL_S is an InfrastructureError, and is tried
again. Nothing is shared between two calls.
"""

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread

from agentrl.errors import EnvError, InfrastructureError

__all__ = ["CPU_S", "MAX_BYTES", "WALL_S", "RuleError", "in_a_cell"]

#: Seconds of a processor, bytes of memory, and seconds by the clock that a call may take.
CPU_S, MAX_BYTES, WALL_S = 3, 2 << 30, 120.0
#: Calls of one process that run at once.
_AT_ONCE = max(2, os.cpu_count() or 2)
_THREADS = anyio.CapacityLimiter(_AT_ONCE)

#: Held so that each is buried once it has ended.
_PROCESSES: list[subprocess.Popen[bytes]] = []

Rule = Callable[..., Any]


class RuleError(EnvError):
    """The rule cannot be applied to this row: its label or its metadata is at fault."""


def in_a_cell(*, otherwise: Any = 0.0) -> Callable[[Rule], Callable[..., Awaitable[Any]]]:
    """Have a rule `(text, label, task)` of the module's own run in a cell. `otherwise`: what a text
    is worth on which it spends more than its time or memory. Only the task's `metadata` travels."""

    def decorated(rule: Rule) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(rule)
        async def asked(text: str, label: Any, task: Mapping[str, Any], /) -> Any:
            call = {
                "module": rule.__module__,
                "rule": rule.__name__,
                "arguments": [text, label, {"metadata": task.get("metadata")}],
            }
            request = json.dumps(call).encode()
            return await anyio.to_thread.run_sync(
                _asked, request, otherwise, abandon_on_cancel=True, limiter=_THREADS
            )

        return asked

    return decorated


def _asked(request: bytes, otherwise: Any) -> Any:
    """Raises RuleError for what the rule refuses, InfrastructureError where no cell answers."""
    try:
        answer = json.loads(_answered(request) or b'{"died": true}')
    except TimeoutError:
        raise InfrastructureError(f"a reward was not found within {WALL_S:g} s") from None
    except OSError as error:
        raise InfrastructureError(f"a reward's process cannot be reached: {error}") from error
    if "died" in answer:
        return otherwise
    if "refused" in answer:
        raise RuleError(answer["refused"])
    return answer["value"]


def _answered(request: bytes) -> bytes:
    """What the fork has written before it ended; empty where it was killed."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            _send(theirs)
        ours.settimeout(WALL_S)
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        answer = b""
        while part := ours.recv(65536):
            answer += part
        return answer


def _send(end: socket.socket) -> None:
    for is_last in (False, True):
        control = _started()
        try:
            socket.send_fds(control, [b"c"], [end.fileno()])
        except OSError:
            # it has gone, by the hand of the kernel or of an operator
            _started.cache_clear()
            control.close()
            if is_last:
                raise
        else:
            return


@functools.cache
def _started() -> socket.socket:
    """The end by which the warm process is asked. It ends when this one does, or closes it."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-P", "-m", "agentrl.envs.grading.cell_process", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own module
            argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
    _PROCESSES.append(process)
    return ours
