"""User code in a process of its own, which it may end or hold for ever.

    parent: run_apart -> child: the `main` of a module -> what it answered, and what was printed

What the child is asked and what it answers are bytes, in files: what the user's code has started
may hold a pipe open for ever. It is killed with all that it began, at the latest after `limit_s`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from agentrl import child
from agentrl.user_traceback import is_users, shown_path

__all__ = ["ChildReply", "answer", "asked", "child_of", "places_in", "run_apart"]

_PATH = "AGENTRL_TRIAL_PATH"


class ChildReply(NamedTuple):
    """A process that has come to its end. `answer` is empty where it gave none."""

    answer: bytes
    printed: str


def child_of(module: str) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of a process that runs `main()` of a module of agentrl's
    as this one would, and ends with the thread that begins it."""
    python = [sys.executable, "-P"]  # a file of the current directory may be called random.py
    code = (
        f"import json, os, sys; sys.path[:] = json.loads(os.environ.pop({_PATH!r})); "
        f"from {module} import main; main()"
    )
    told = {_PATH: json.dumps(sys.path), "OMP_NUM_THREADS": "1"}
    command = [*python, child.__file__, str(os.getpid()), *python, "-c", code]
    return command, os.environ | told


def run_apart(
    module: str, question: bytes, limit_s: float, variables: Mapping[str, str] | None = None
) -> ChildReply:
    """Run `main()` of a module of agentrl's, which takes `asked()` and gives its `answer`.
    `variables`: of its environment, beside those of this process."""
    command, env = child_of(module)
    with TemporaryFile() as asking, TemporaryFile() as answering, TemporaryFile() as printing:
        asking.write(question)
        asking.seek(0)
        process = subprocess.Popen(  # noqa: S603 - ourselves, no shell
            command,
            stdin=asking,
            stdout=answering,
            stderr=printing,
            env=env | dict(variables or {}),
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return ChildReply(_read(answering), _read(printing).decode("utf-8", "replace"))


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def places_in(said: str) -> Iterator[str]:
    """`name (path/to/file.py:12)` for each line of the user's in what faulthandler has said, the
    innermost first."""
    for file, line, name in re.findall(r'File "([^"]+)", line (\d+) in (\S+)', said):
        if is_users(file):
            yield f"{name} ({shown_path(file)}:{line})"


# ---- in the process of its own -------------------------------------------------------------------


def asked() -> bytes:
    """The question; asked for once, before any code of the user's. What that prints is no answer
    from now on."""
    global _answers
    _answers = os.dup(1)
    os.dup2(2, 1)
    return sys.stdin.buffer.read()


def answer(said: bytes) -> None:
    """Give the answer and end the process: threads of the user's code do not hold it."""
    sys.stdout.flush()
    os.write(_answers, said)
    os._exit(0)


_answers = -1
