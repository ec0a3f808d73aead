"""One run of code as a process: the handshake with `inside.py`, what it writes, its end.

    started -> b"r": its life is bound to ours -> order sent -> b"g": the code runs
        -> it ends | deadline | it wrote too much -> killed with its group, waited for

Nothing is read beyond what is kept, and nothing is left behind: however a run ends, a cancellation
too, its process is killed and waited for.
"""

import base64
import json
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import msgspec

from agentrl.errors import InfrastructureError
from agentrl.tools.sandbox.limits import SandboxLimits, SandboxResult
from agentrl.tools.sandbox.syscalls import seccomp_filter

__all__ = ["PYTHON_ENVIRONMENT", "PYTHON_FLAGS", "Walls", "run_process"]

_LOG = logging.getLogger(__name__)
#: No site packages, no folder of a script before the standard library, no bytecode written.
PYTHON_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
#: All of the environment. Sets and dicts have the same order in every run.
PYTHON_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
#: Seconds until the code runs: long, for many may start at once on a busy machine.
START_S = 30.0
#: Seconds that a killed process has to be gone.
END_S = 10.0

Walls = Literal["bubblewrap", "namespaces", "none"]


async def run_process(
    argv: Sequence[str], walls: Walls, code: str, limits: SandboxLimits, cwd: Path | None = None
) -> SandboxResult:
    """Run `inside.py`, which `argv` starts, on `code`.

    Raises InfrastructureError when the code could not be begun.
    """
    order = {
        "walls": walls,
        "limits": msgspec.to_builtins(limits),
        "filter": base64.b64encode(seccomp_filter()).decode(),
        "code": code,
    }
    # Cancelled half-way, it would leave a process that nobody knows.
    with anyio.CancelScope(shield=True):
        try:
            process = await anyio.open_process(
                argv, cwd=cwd, env=PYTHON_ENVIRONMENT, start_new_session=True
            )
        except OSError as error:
            raise InfrastructureError(f"{argv[0]} cannot be started: {error}") from error
    try:
        await _begin(process, json.dumps(order).encode(), argv[0])
        return await _watch(process, limits)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _begin(process: anyio.abc.Process, order: bytes, name: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with anyio.move_on_after(START_S) as deadline, suppress(anyio.EndOfStream):
        await process.stdout.receive(1)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await process.stdin.send(order)
            await process.stdin.aclose()
        await process.stdout.receive(1)
        return
    if deadline.cancelled_caught:
        raise InfrastructureError(f"the sandbox of {name} did not start within {START_S:g} s")
    said = await _capped(process.stderr, 4096)
    words = " ".join(said.decode("utf-8", "replace").split())[-500:] or "it said nothing"
    raise InfrastructureError(f"the sandbox of {name} did not start: {words}")


async def _watch(process: anyio.abc.Process, limits: SandboxLimits) -> SandboxResult:
    most = limits.max_output_bytes
    outputs = {"stdout": b"", "stderr": b""}
    with anyio.move_on_after(limits.wall_s) as deadline:
        async with anyio.create_task_group() as readers:

            async def read(name: str, stream: anyio.abc.ByteReceiveStream | None) -> None:
                assert stream is not None
                async for chunk in stream:
                    outputs[name] += chunk
                    if len(outputs[name]) > most:
                        readers.cancel_scope.cancel()

            readers.start_soon(read, "stdout", process.stdout)
            readers.start_soon(read, "stderr", process.stderr)
        if all(len(output) <= most for output in outputs.values()):
            await process.wait()
    code = None if process.returncode is None else _as_a_shell(process.returncode)
    stdout, stderr = (output[:most].decode("utf-8", "replace") for output in outputs.values())
    is_cut = any(len(output) > most for output in outputs.values())
    timed_out = deadline.cancelled_caught or code == 128 + signal.SIGXCPU
    return SandboxResult(stdout, stderr, None if is_cut else code, timed_out, is_cut)


def _as_a_shell(code: int) -> int:
    return 128 - code if code < 0 else code


async def _capped(stream: anyio.abc.ByteReceiveStream | None, num_bytes: int) -> bytes:
    """What comes of `stream` within a second, up to `num_bytes`."""
    assert stream is not None
    said = b""
    with anyio.move_on_after(1):
        async for chunk in stream:
            said += chunk
            if len(said) >= num_bytes:
                break
    return said[:num_bytes]


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(END_S):
        await process.wait()
    if process.returncode is not None:
        await process.aclose()
        return
    # Closing it whole would wait for it, under a shield of its own.
    _LOG.error("process %d of a sandbox was killed %g s ago and is not gone", process.pid, END_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            await pipe.aclose()
