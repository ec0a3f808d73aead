"""Rules for hostile text, each call in a process of its own that can be killed.

    asked -> a warm process forks -> value | refused | broken   the fork answers and ends
                                  -> unimportable               the rule's module raises
                                  -> died                       it spent its time or memory
                                  -> ended                      somebody else killed it

A model may write what makes a parser think for years or fill the memory. So a rule never runs in
the process that asks: one process per asking process has the rules imported (`cell_process.py`),
and forks for each call. The import of a rule's module is no part of the call's time. The fork may
use CPU_S seconds of a processor and MAX_BYTES of memory, of which the kernel knows, so that no text
can talk itself out of it. Time of a busy host is not the text's fault, nor is a process that
somebody else ends: a call that is not answered within WALL_S, or whose fork was ended within its
limits, is an InfrastructureError, and is tried again. A rule that raises is an EnvError with its
traceback, and so is a module that cannot be imported. The fork of a call that is given up or
cancelled is killed. Nothing is shared between two calls.
"""

import contextlib
import functools
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from agentrl.errors import ConfigError, EnvError, InfrastructureError
from agentrl.user_code import place_in

__all__ = ["CPU_S", "MAX_BYTES", "WALL_S", "RuleError", "in_a_cell"]

#: Seconds of a processor, bytes of memory, and seconds by the clock that a call may take.
CPU_S, MAX_BYTES, WALL_S = 3, 2 << 30, 120.0
#: Calls of one process that run at once.
_AT_ONCE = max(2, os.cpu_count() or 2)
_THREADS = anyio.CapacityLimiter(_AT_ONCE)

#: Warm processes that were started and not yet seen to end, the one in use last.
_PROCESSES: list[subprocess.Popen[bytes]] = []
#: What keeps libraries of numbers from starting threads in a process that forks.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: Held by who asks the warm process, so that one that has gone is replaced once.
_ASKING = threading.Lock()
#: Seconds that a warm process has to end which has closed its socket.
_END_S = 10.0

Rule = Callable[..., Any]


class RuleError(EnvError):
    """The rule cannot be applied to this row: its label or its metadata is at fault."""


def in_a_cell(*, otherwise: Any = 0.0) -> Callable[[Rule], Callable[..., Awaitable[Any]]]:
    """Have a rule `(text, label, task)` of the module's own run in a cell. `otherwise`: what a text
    is worth on which it spends more than its time or memory. Only the task's `metadata` travels.

    Raises ConfigError for a rule of a file that is no module: its process could not import it."""

    def decorated(rule: Rule) -> Callable[..., Awaitable[Any]]:
        _require_module(rule)

        @functools.wraps(rule)
        async def asked(text: str, label: Any, task: Mapping[str, Any], /) -> Any:
            request = _written(rule, text, label, task.get("metadata"))
            call = _Call()
            try:
                return await anyio.to_thread.run_sync(
                    _asked, call, rule, request, otherwise, abandon_on_cancel=True, limiter=_THREADS
                )
            finally:
                call.give_up()

        return asked

    return decorated


class _Call:
    """The socket of a call. A call that is given up has its socket shut down: the thread that reads
    it wakes up, and the warm process kills the fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: socket.socket | None = None
        self._is_given_up = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        """Our end and the fork's."""
        ours, theirs = socket.socketpair()
        with self._lock:
            self._ours = ours
            self._shut_down_if_given_up()
        try:
            with theirs:
                yield ours, theirs
        finally:
            with self._lock:
                self._ours = None
                ours.close()

    def give_up(self) -> None:
        """Does nothing to a call that was answered."""
        with self._lock:
            self._is_given_up = True
            self._shut_down_if_given_up()

    def _shut_down_if_given_up(self) -> None:
        if self._is_given_up and self._ours is not None:
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)


def _require_module(rule: Rule) -> None:
    # not `importlib.util.find_spec`, which knows what this process has loaded from a file
    top = rule.__module__.partition(".")[0]
    if not any(finder.find_spec(top, None) for finder in sys.meta_path):
        raise ConfigError(
            f"{place_in(rule)} stands under @in_a_cell, whose process can import modules and no "
            "file by its path: put it into a package, or into a folder on PYTHONPATH, and name it "
            f"as pkg.module:{rule.__name__}; one of agentrl's own is named with --rm-type"
        )


def _written(rule: Rule, text: str, label: Any, metadata: Any) -> bytes:
    """The call as the fork reads it; what JSON lacks as `msgspec` writes it, such as a date."""
    if isinstance(label, float) and not math.isfinite(label):
        raise RuleError(f"the label {label} is no number that an answer could be")
    call = {
        "module": rule.__module__,
        "rule": rule.__name__,
        "arguments": [text, label, {"metadata": metadata}],
    }
    try:
        return json.dumps(call, default=msgspec.to_builtins).encode()
    except (TypeError, ValueError) as error:
        what = f"label or metadata of the row cannot be sent to the rule {rule.__name__}"
        raise RuleError(f"{what}: {error}") from error


def _asked(call: _Call, rule: Rule, request: bytes, otherwise: Any) -> Any:
    """Raises RuleError for what the rule refuses, EnvError where it breaks or its module does,
    InfrastructureError where no cell answers."""
    try:
        # the warm process writes behind what the fork has written
        told = _answered(call, rule.__module__, request).rpartition(b"\n")[2]
    except TimeoutError:
        raise InfrastructureError(f"a reward was not found within {WALL_S:g} s") from None
    except OSError as error:
        raise InfrastructureError(f"a reward's process cannot be reached: {error}") from error
    answer = json.loads(told or b'{"ended": "nobody has seen it end"}')
    if "died" in answer:
        return otherwise
    if "refused" in answer:
        raise RuleError(answer["refused"])
    if "unimportable" in answer:
        raise EnvError(
            f"the module {rule.__module__} of the rule {rule.__name__} cannot be imported where "
            f"rules run: {answer['unimportable']}"
        )
    if "broken" in answer:
        raise EnvError(
            f"the rule {rule.__name__} is broken or was given what it cannot read: "
            f"{answer['broken']}"
        )
    if "ended" in answer:
        raise InfrastructureError(
            f"the process of the rule {rule.__name__} ended without an answer and within its "
            f"limits: {answer['ended']}"
        )
    return answer["value"]


def _answered(call: _Call, module: str, request: bytes) -> bytes:
    """What fork and warm process have written; empty where both were killed."""
    with call.opened() as (ours, theirs):
        with _ASKING:
            _send(theirs, module)
        theirs.close()
        ours.settimeout(WALL_S)
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        answer = b""
        while part := ours.recv(65536):
            answer += part
        return answer


def _send(end: socket.socket, module: str) -> None:
    for is_last in (False, True):
        control = _started()
        try:
            socket.send_fds(control, [module.encode()], [end.fileno()])
        except OSError:
            # it has gone, by the hand of the kernel or of an operator
            _started.cache_clear()
            control.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                _PROCESSES[-1].wait(_END_S)
            if is_last:
                raise
        else:
            return


@functools.cache
def _started() -> socket.socket:
    """The end by which the warm process is asked. It ends when this one does, or closes it."""
    _PROCESSES[:] = [process for process in _PROCESSES if process.poll() is None]
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-P", "-m", "agentrl.envs.grading.cell_process", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own module
            argv,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | dict.fromkeys(_THREAD_COUNTS, "1"),
        )
    _PROCESSES.append(process)
    return ours
