"""One run at a time writes to a folder of checkpoints: `.agentrl_lock.json` in it says which.

    FREE -> HELD (`locked`) -> FREE       at the end of the program, however it ends on its own
                            -> LEFT       it was killed; the next program sees that, and takes over

Two runs that begin with one empty `--save` would otherwise both find it theirs. The file is made
where none is (O_EXCL, which network disks have too; locks of the kernel many have not). The program
that takes over makes the next one, `.agentrl_lock.json.1`: only one can, and the lock that was left
stays until then, so the folder is never free between. Its holder has then seen no other lock whose
program lives. A holder on this machine is asked for by its process. One elsewhere touches the file
as long as it lives, and the disk's own clock says when it last did. The run that holds the folder
has the lock's token in its `run.json`: continued on another machine, it goes on at once.
"""

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentrl import disk
from agentrl.config.places import save_folder
from agentrl.config.record import RunRecord, read_record
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError
from agentrl.visible import visible

__all__ = ["FILE", "check_unlocked", "locked"]

FILE = ".agentrl_lock.json"
#: Seconds between two touches, and those after which a holder elsewhere is taken for dead. Network
#: disks tell a change after up to a minute.
_BEAT_S, _DEAD_S = 20.0, 300.0
#: How often a program tries again that has found a lock left, and taken over by another.
_ATTEMPTS = 8
#: No run has this name: of the folder that a run gets whose id is not made yet.
_UNNAMED = "a new run"


class _Holder(msgspec.Struct, frozen=True):
    """`token`: that of the run's record. `machine` and `started` tell the process from all others
    that had its number; `machine` is empty where that cannot be told."""

    run_id: str
    token: str
    host: str
    since: str
    pid: int
    machine: str
    started: int


@contextmanager
def locked(folder: Path, record: RunRecord) -> Iterator[None]:
    """Hold `folder` for the run of that record. Raises EnvironmentSetupError while another program
    does, and when the folder cannot be written."""
    pid = os.getpid()
    ours = _Holder(
        run_id=record.id,
        token=record.token,
        host=socket.gethostname(),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        pid=pid,
        machine=_machine(),
        started=_started(pid) or 0,
    )
    try:
        disk.make_folder(folder)
        path = _take(folder, ours)
    except OSError as error:
        raise EnvironmentSetupError(
            f"--save {folder} cannot be written: {error.strerror}; choose another place"
        ) from error
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, over), name="save-lock", daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join(_BEAT_S)  # a disk that hangs does not hold the end of the run
        with contextlib.suppress(OSError):
            if _read(path) == ours:
                path.unlink()


def check_unlocked(config: RunConfig) -> None:
    """Raise EnvironmentSetupError while another run holds the folder that `config` would save to.
    Nothing is taken: another may come first."""
    if config.save is None or config.eval_only:
        return
    record = read_record(Path(config.resume)) if config.is_continued else None
    with contextlib.suppress(OSError):  # whether it can be read and written is asked elsewhere
        _refuse_held(
            save_folder(Path(config.save), config.run_id or _UNNAMED),
            "" if record is None else record.token,
        )


def _take(folder: Path, ours: _Holder) -> Path:
    """Make the lock after all others, and return its path."""
    for _ in range(_ATTEMPTS):
        left = _refuse_held(folder, ours.token)
        path = _path(folder, max(map(_number, left), default=-1) + 1)
        try:
            _create(path, ours)
        except FileExistsError:  # another program was first
            continue
        try:  # one that looked before this lock was there may have begun a row of its own
            _refuse_held(folder, ours.token, but=path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        for old in left:
            old.unlink(missing_ok=True)
        return path
    raise EnvironmentSetupError(
        f"--save {folder}: other programs take it again and again; choose another place"
    )


def _create(path: Path, ours: _Holder) -> None:
    file = disk.create_file(path)
    try:
        with file:
            file.write(msgspec.json.format(msgspec.json.encode(ours)) + b"\n")
            disk.sync_file(file)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _refuse_held(folder: Path, token: str, *, but: Path | None = None) -> list[Path]:
    """The locks in the folder, which programs have left that are dead. Raises
    EnvironmentSetupError with the name of one that lives."""
    left = []
    for path in folder.glob(f"{FILE}*"):
        if path == but or _number(path) < 0:
            continue
        with contextlib.suppress(FileNotFoundError):  # given back just now
            found = _read(path)
            if _is_held(path, found, token):
                raise EnvironmentSetupError(_held_text(path, found))
            left.append(path)
    return left


def _held_text(path: Path, found: _Holder | None) -> str:
    """`found`: what the lock says; None where it is not written yet, or by something else."""
    who = "a run that has just begun" if found is None else f"the run {visible(found.run_id)}"
    if found is not None:
        who += f" (process {found.pid} on {visible(found.host)}, since {visible(found.since)})"
    return (
        f"--save {path.parent}: {who} writes its checkpoints there; wait for its end, stop it, or "
        f"choose another --save (if it has ended, remove {path})"
    )


def _path(folder: Path, number: int) -> Path:
    return folder / (f"{FILE}.{number}" if number else FILE)


def _number(path: Path) -> int:
    """How many programs were taken over from up to this lock; -1 for what is no lock."""
    end = path.name.removeprefix(FILE)
    if not end:
        return 0
    return int(end[1:]) if end[0] == "." and end[1:].isdecimal() else -1


def _is_held(path: Path, found: _Holder | None, token: str) -> bool:
    if found is not None:
        if found.machine and found.machine == _machine():
            return _started(found.pid) == found.started
        if token and found.token == token:
            return False  # it is this run's, whose directory this program has to itself
    return _now(path.parent) - path.stat().st_mtime < _DEAD_S


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        with contextlib.suppress(OSError):  # a disk that is away for a while
            os.utime(path)


def _read(path: Path) -> _Holder | None:
    """None for what is no lock of ours, or not yet. Raises OSError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Holder)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


def _now(folder: Path) -> float:
    """The time by the clock of the disk, a server's where it is on a network."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".agentrl-") as file:
        file.write(b"what time is it?")
        file.flush()
        os.utime(file.name)
        return Path(file.name).stat().st_mtime


def _machine() -> str:
    """Where a process's number means the same: one boot of one kernel, and one space of numbers (a
    container has its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When the process of that number began, in ticks since the boot; None where there is none.
    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html (field 22)"""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
