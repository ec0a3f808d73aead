"""`env check` from a shell, in a process of its own: code that is tried may end its process
(`os._exit`, a crash of C code), and then the promise that was tried is broken, whatever the process
ended with.

    parent: starts -> waits -> ends what is left -> exit code
    child:  `tell` the promise that is tried -> ... -> `tell` that it has come to its end
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable

from agentrl import child
from agentrl.envs.processes import end_all

__all__ = ["inside", "run_apart", "tell"]

#: Variables of the child: where it writes to, what it imports from, and what all that it starts is
#: known by.
_PIPE, _PATH, _MARK = "AGENTRL_CHECK_PIPE", "AGENTRL_CHECK_PATH", "AGENTRL_CHECKED"
_CODE = (
    f"import json, os, sys; sys.path[:] = json.loads(os.environ.pop({_PATH!r})); "
    "from importlib import import_module; main = import_module(sys.argv.pop(1)).main; "
    f"sys.exit(import_module({__name__!r}).inside(sys.argv[1:], main))"
)
#: What is tried before any promise, and what is told at the end.
_FIRST, _END = "it can be imported, made and reset", "(the end)"


def run_apart(argv: list[str], program: str) -> int:
    """Run `main` of the module `program` with `argv` in a process of its own; returns its exit
    code, or 1 where code that was tried has ended it."""
    reads, writes = os.pipe()
    mark = secrets.token_hex(16)
    told = {_PIPE: str(writes), _PATH: json.dumps(sys.path), _MARK: mark}
    python = [sys.executable, "-P"]  # a file of the current directory may be called json.py
    bound = [*python, child.__file__, str(os.getpid())]
    try:
        code = _ended(
            subprocess.Popen(  # noqa: S603 - this very program
                [*bound, *python, "-c", _CODE, program, *argv],
                env=os.environ | told,
                pass_fds=[writes],
            )
        )
        os.write(writes, b"\n")  # the end of what was told; others may hold the pipe open
        tried = f"{_FIRST}\n{os.read(reads, 65_536).decode()}".strip().splitlines()[-1]
    finally:
        os.close(reads)
        os.close(writes)
        end_all(None, None, f"{_MARK}={mark}".encode())
    if tried == _END:
        return code if code >= 0 else 128 - code
    how = f"with exit code {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
    sys.stdout.write(
        f"BAD {tried}\n    code of the Env ended the process {how}, where only the check may end "
        "it: raise an error in its place\nthis promise is broken, and nothing more was tried\n"
    )
    return 1


def _ended(process: "subprocess.Popen[bytes]") -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child has it too, and ends
            continue


def inside(argv: list[str], main: Callable[[list[str]], int]) -> int:
    """What the child runs."""
    os.set_inheritable(int(os.environ[_PIPE]), False)
    try:
        return main(argv)
    finally:
        tell(_END)


def tell(what: str) -> None:
    """Tell the parent, if there is one, where the check stands."""
    if pipe := os.environ.get(_PIPE):
        os.write(int(pipe), f"{what}\n".encode())
