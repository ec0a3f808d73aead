"""The sandbox of bubblewrap: new namespaces of every kind, and a root that holds only Python.

Read-only and at their own places: the interpreter, its standard library, the shared libraries of
the system. Writable: a work folder in memory, made by `inside.py`. No /proc, no /sys, of /dev only
`null`. The first process of its PID namespace dies with the worker, and with it all others.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.tools.sandbox.limits import SandboxLimits, SandboxResult
from agentrl.tools.sandbox.process import PYTHON_FLAGS, run_process

__all__ = ["INSIDE", "Bubblewrap", "interpreter"]

#: The program of the sandbox, here; inside it lies under the root.
INSIDE = Path(__file__).with_name("inside.py")
_WORK = "/work"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")


class Bubblewrap(msgspec.Struct, frozen=True):
    """Runs code with the program `bwrap`."""

    program: str
    name: str = "bubblewrap"

    async def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """Run `code`. Raises InfrastructureError when it could not be begun."""
        inside = f"/{INSIDE.name}"
        argv = self.command([interpreter(), *PYTHON_FLAGS, inside], {str(INSIDE): inside})
        return await run_process(argv, "bubblewrap", code, limits)

    def command(self, argv: Sequence[str], files: dict[str, str]) -> list[str]:
        """The command line of `argv` behind the walls; `files` are bound read-only, from -> to."""
        flags = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
        flags += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
        flags += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
        # For the mount of the work folder, in these namespaces only; `inside.py` gives it back.
        flags += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
        for source, target in {**_python_files(), **files}.items():
            flags += ["--ro-bind", source, target]
        flags += ["--dev-bind", "/dev/null", "/dev/null", "--dir", _WORK, "--remount-ro", "/"]
        return [self.program, *flags, "--chdir", _WORK, "--", *argv]


def interpreter() -> str:
    """The Python behind a virtual environment: it finds its library without files of that."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


def _python_files() -> dict[str, str]:
    """What the interpreter needs, each at its own place."""
    places = [interpreter(), sysconfig.get_path("stdlib"), *_LIBRARIES]
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    if library.endswith(".so"):
        folder = Path(sysconfig.get_config_var("LIBDIR"))
        places += [str(path) for path in folder.glob(f"{library}*")]
    return {place: place for place in places if Path(place).exists()}
