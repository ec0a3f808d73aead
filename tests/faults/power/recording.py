"""What a process asked of the disk and said to its sockets, in order: written by `recorder.c`.

build -> environment, of a process that writes a log -> read

op   path       other     offset      data
M    folder                                       made
C    file                                         created
W    file                 where       bytes       written
T    file                 new length              cut or lengthened
R    old name   new name                          renamed
U    name                                         removed
B E  any                  descriptor              a sync begins, a sync has ended
F    any                  descriptor              a sync has failed
S V  socket                           bytes       said, heard
"""

import shutil
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest

__all__ = ["Record", "build", "environment", "read"]

_HEAD = struct.Struct("<c x HH 2x q Q")


class Record(msgspec.Struct, frozen=True):
    """One operation."""

    op: str
    path: str
    other: str
    offset: int
    data: bytes


def build(folder: Path, name: str = "recorder") -> Path:
    """`NAME.c` of this folder, as a library in `folder`. Skips the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler (cc, gcc or clang) to build tests/faults/power with")
    library = folder / f"{name}.so"
    flags = ["-shared", "-fPIC", "-O1", "-ldl", "-lpthread"]
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, str(source), "-o", str(library), *flags], check=True, timeout=500)
    return library


def environment(library: Path, root: Path, log: Path) -> dict[str, str]:
    """What a process is told so that it records what happens below `root` into `log`, which lies
    elsewhere. Its children record nothing."""
    return {"LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)}


def read(log: Path) -> list[Record]:
    """All that was recorded."""
    data, at, found = log.read_bytes(), 0, []

    def take(num_bytes: int) -> bytes:
        nonlocal at
        at += num_bytes
        assert at <= len(data), f"{log} ends in the midst of a record"
        return data[at - num_bytes : at]

    while at < len(data):
        op, path, other, offset, num_bytes = _HEAD.unpack(take(_HEAD.size))
        names = (take(path).decode(), take(other).decode())
        found.append(Record(op.decode(), *names, offset, take(num_bytes) if op in b"WSV" else b""))
    return found
