"""The process in which the model's code runs. It shuts every door behind itself, then runs it.

    started -> bound to its parent's life -> b"r" -> the order is read -> walls, limits, filter
        -> b"g" -> the code, as __main__

A program, never imported by agentrl: it needs the standard library alone, for in bubblewrap there
is nothing else. The order is one JSON object on stdin. What goes wrong before b"g" is on stderr and
is the sandbox's; after it, everything on stdout and stderr is the code's.

Walls are bubblewrap's, or for the plain sandbox namespaces of its own as far as the kernel allows:
network, IPC, host name, a work folder in memory whose size is bounded, and no /proc. Capabilities
go in each case, so that code of a worker that runs as root is not above the permissions of files.
"""

import base64
import ctypes
import json
import linecache
import os
import resource
import signal
import struct
import sys
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

READY, GO = b"r", b"g"
NAME = "<code>"

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 22, 38, 24
SECCOMP_MODE_FILTER = 2
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000
#: KEYCTL_JOIN_SESSION_KEYRING, and the number of keyctl.
JOIN_KEYRING, KEYCTL = 1, {"x86_64": 250, "aarch64": 219}
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parent = os.getppid()
    bind_life()
    os.write(1, READY)
    order = json.loads(sys.stdin.buffer.read())
    limits = order["limits"]
    build_walls(order["walls"], limits["disk_bytes"], limits["max_files"])
    drop_rights()
    # Credentials that change may make the kernel forget to whom this life is bound.
    bind_life()
    if os.getppid() != parent:
        sys.exit("the worker ended")
    if "random" in order["code"]:
        seed_random()
    set_limits(limits)
    install(base64.b64decode(order["filter"]))
    os.write(1, GO)
    run(order["code"])


def call(name: str, *args: Any) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(libc, name)(*args) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def prctl(option: int, *args: Any) -> None:
    call("prctl", option, *(ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]))


def bind_life() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# ---- walls ---------------------------------------------------------------------------------------


def build_walls(kind: str, disk_bytes: int, max_files: int) -> None:
    """`bubblewrap` has built all but the work folder; `namespaces` does what the kernel allows."""
    if kind == "namespaces":
        with suppress(OSError):
            enter_namespaces()
            mount_work_folder(disk_bytes, max_files)
            hide_processes()
    elif kind == "bubblewrap":
        mount_work_folder(disk_bytes, max_files)


def enter_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS)
    proc = Path("/proc/self")
    (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"{NOBODY} {user} 1")
    (proc / "gid_map").write_text(f"{NOBODY} {group} 1")
    call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)


def mount_work_folder(disk_bytes: int, max_files: int) -> None:
    place = Path.cwd()
    # the folder itself is a file, too
    options = f"size={disk_bytes},nr_inodes={max_files + 1},mode=0700".encode()
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    call("mount", b"tmpfs", bytes(place), b"tmpfs", flags, options)
    os.chdir(place)


def hide_processes() -> None:
    """An empty folder in the place of /proc. There the code would see all processes of the host,
    and could, with the rights of their user, have the kernel end them first (oom_score_adj)."""
    flags = ctypes.c_ulong(MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    call("mount", b"tmpfs", b"/proc", b"tmpfs", flags, b"size=4k,nr_inodes=2")


def drop_rights() -> None:
    """No capability now or by any later program, and a session keyring of its own."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    with suppress(OSError):  # the bounding set is for those who may change it
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    call("capset", header, bytes(24))
    with suppress(OSError):  # a kernel without keyrings has none to inherit
        call("syscall", ctypes.c_long(KEYCTL[os.uname().machine]), JOIN_KEYRING, None)


def set_limits(limits: dict[str, int]) -> None:
    for name, soft, hard in (
        # The soft one ends the code by a signal that names the reason.
        ("CPU", limits["cpu_s"], limits["cpu_s"] + 1),
        ("AS", limits["memory_bytes"], limits["memory_bytes"]),
        ("DATA", limits["memory_bytes"], limits["memory_bytes"]),
        ("FSIZE", limits["disk_bytes"], limits["disk_bytes"]),
        ("NOFILE", limits["max_open_files"], limits["max_open_files"]),
        ("NPROC", 0, 0),
        ("CORE", 0, 0),
        ("MEMLOCK", 0, 0),
        ("MSGQUEUE", 0, 0),
        ("SIGPENDING", 64, 64),
        ("RTPRIO", 0, 0),
        ("NICE", 0, 0),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))
    os.umask(0o077)


def install(program: bytes) -> None:
    """From here on the kernel refuses the calls of `program`, for good."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    filled = Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filled))


# ---- the code ------------------------------------------------------------------------------------


def seed_random() -> None:
    """Unseeded `random` gives the same numbers in every run."""
    import random

    random.seed(0)


def run(code: str) -> None:
    """Run `code` as a program of its own; its error is shown without this file's part in it."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    try:
        exec(compile(code, NAME, "exec"), vars(module))  # noqa: S102 - it is what this is for
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        traceback.print_exception(error.with_traceback(trace.tb_next if trace else None))
        sys.exit(1)


if __name__ == "__main__":
    main()
