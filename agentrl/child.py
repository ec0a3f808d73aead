"""Runs one program so that it cannot outlive the process that started it.

    python -m agentrl.child PARENT_PID PROGRAM [ARG ...]

Asks the kernel for SIGKILL when the parent thread ends (`prctl(PR_SET_PDEATHSIG)`), checks that
the parent was still alive at that moment, and becomes the program (`exec` keeps the request). This
is what makes "if the driver or Ray's head dies, every child exits" hold for foreign programs. Only
the standard library is imported, so that the detour costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Bind the life of this process to its parent's and exec `argv[1:]`."""
    parent, program = int(argv[0]), argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"parent {parent} ended before {program[0]} could start")
    os.execvp(program[0], program)  # noqa: S606 - this module's purpose is to become the program


if __name__ == "__main__":
    main(sys.argv[1:])
