"""`agentrl doctor`: does this host have what a run needs? Looks and measures; changes nothing.

The disk is measured where runs would be written, because every acknowledged trajectory waits for
an fsync there.
"""

import os
import shutil
import socket
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from agentrl.cluster.node_facts import NEEDED, most_open_files
from agentrl.cluster.own_ray import users_token_file
from agentrl.config.descriptors import open_files
from agentrl.config.device import choose_here
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.config.shadowed import PACKAGES, shadow_of
from agentrl.disk import sync_file

__all__ = ["HostFinding", "examine", "open_files_enough"]

_PYTHONS = ((3, 11), (3, 12))
_FSYNCS = 20
_FSYNC_LIMIT_S = 0.1
_FREE_BYTES = 2 * 1024**3
_GIB = 1024**3


class HostFinding(msgspec.Struct, frozen=True):
    """One thing that was looked at; `detail` says what to do when it is not good."""

    name: str
    good: bool
    detail: str


def examine(run_dir: Path) -> list[HostFinding]:
    """Everything, in the order in which a start would stumble over it."""
    place = next(p for p in (run_dir.absolute(), *run_dir.absolute().parents) if p.is_dir())
    return [
        _python(),
        *_packages(),
        _device(),
        _loopback(),
        _ray_token(users_token_file()),
        _fsync(place),
        _disk(place),
        _memory(),
        open_files_enough(most_open_files()),
    ]


def _python() -> HostFinding:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] in _PYTHONS
    needed = " or ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
    return HostFinding(
        "python", good, version if good else f"{version}; {needed} is needed: make setup"
    )


def _packages() -> Iterator[HostFinding]:
    for name in NEEDED:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield HostFinding(name, False, "not installed: make setup")
            continue
        place = shadow_of(name) if name in PACKAGES else None
        detail = f"{version}, but Python would take {place}: see PYTHONPATH" if place else version
        yield HostFinding(name, place is None, detail)


def _device() -> HostFinding:
    """What `--device auto` means here; either is good."""
    choice = choose_here("auto")
    cores = len(os.sched_getaffinity(0))
    return HostFinding("device", True, f"{choice.device}: {choice.reason}; {cores} CPU cores")


def _loopback() -> HostFinding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=5):
                return HostFinding(
                    "ports", True, f"127.0.0.1:{address[1]} could be bound and reached"
                )
    except OSError as error:
        return HostFinding("ports", False, f"127.0.0.1 cannot be used: {error}")


def _ray_token(path: Path) -> HostFinding:
    """A run's own Ray has a token of its own; this one is for clusters that runs join."""
    if not path.exists():
        return HostFinding(
            "ray token", True, "none of your own; a run on this machine makes its own"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        text = f"{path} has mode {mode:04o}: who reads it may run code as you: chmod 600 {path}"
        return HostFinding("ray token", False, text)
    return HostFinding("ray token", True, f"{path}, for --ray-address")


def _fsync(place: Path) -> HostFinding:
    times = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(_FSYNCS):
                file.write(b"x" * 4096)
                start = time.monotonic()
                sync_file(file)
                times.append(time.monotonic() - start)
    except OSError as error:
        return HostFinding("fsync", False, f"{place} cannot be written: {error}")
    median = statistics.median(times)
    text = f"{1000 * median:.1f} ms (median of {_FSYNCS}) in {place}"
    if median > _FSYNC_LIMIT_S:
        text += "; trajectories would wait for it: choose a local disk with --run-dir"
    return HostFinding("fsync", median <= _FSYNC_LIMIT_S, text)


def _disk(place: Path) -> HostFinding:
    free = shutil.disk_usage(place).free
    return HostFinding("disk", free > _FREE_BYTES, f"{free / _GIB:.1f} GiB free in {place}")


def _memory() -> HostFinding:
    import psutil

    free = psutil.virtual_memory().available
    text = f"{free / _GIB:.1f} GiB available"
    good = free > _FREE_BYTES
    return HostFinding("memory", good, text if good else f"{text}; the default job needs 2 GiB")


def open_files_enough(hard: int | None) -> HostFinding:
    """By the hard limit, to which a run raises its own; None: there is no limit."""
    needed = open_files(RunConfig(**PRESETS[DEFAULT].values)).most
    good = hard is None or hard >= needed
    text = "no limit" if hard is None else f"ulimit -Hn {hard}"
    return HostFinding(
        "open files", good, text if good else f"{text}; the default job needs {needed}: raise it"
    )
