"""Names and places of a run: its directory, log files, private socket folder and process orders."""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from agentrl import disk
from agentrl.cluster.host import INCARNATION, ProcessOrder
from agentrl.cluster.kinds import ProcessKind
from agentrl.cluster.signals import in_turns
from agentrl.config.edited import digests
from agentrl.config.places import checkpoint_root
from agentrl.config.record import RunRecord, read_record, write_record
from agentrl.config.resume import refuse_taken
from agentrl.config.run import RunConfig
from agentrl.errors import EnvironmentSetupError
from agentrl.visible import visible

__all__ = ["INCARNATION", "RUN_MARK", "RunDir", "processes_of", "role_order", "with_run"]

#: Environment variable of every process of a run: its run directory.
RUN_MARK = "AGENTRL_RUN"

_PRIVATE = "agentrl-"

#: Seconds that the processes of a killed driver have to end.
PREDECESSORS_S = 15.0
#: Bytes at the end of a log in which its last lines are looked for: an engine's has no bound.
_TAIL_BYTES = 64 * 1024


def processes_of(run: Path) -> list[int]:
    """Processes of the run at `run` on this node, by the mark that each of them bears."""
    mark = f"{RUN_MARK}={run}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


class RunDir:
    """`runs/ID` and a private folder (0700) for sockets and the specification, removed at the end.

    The private folder lies in the system's temporary directory, because a socket path may have at
    most about 100 characters. The run directory notes which it is, so that the program that
    continues the run can remove what a killed one left. One program at a time works on a run.

    `check` is called while it waits for those of a killed program, and may raise.
    """

    def __init__(self, config: RunConfig, check: Callable[[], None] = lambda: None) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.id = config.run_id or f"{stamp}-{secrets.token_hex(2)}"
        self._resume = config.resume
        self._is_continued = config.is_continued
        self._files = digests(config)
        self._token = secrets.token_hex(16)
        place = Path(config.resume) if config.is_continued else Path(config.run_dir) / self.id
        self.path = place.resolve()
        self.private = Path(tempfile.gettempdir()) / f"{_PRIVATE}{secrets.token_hex(6)}"
        self._lock: int | None = None
        self._check = check

    def __enter__(self) -> "RunDir":
        try:
            self._enter()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.private, ignore_errors=True)
        with contextlib.suppress(OSError):  # what ended the run is what must be heard
            write_record(self.path, msgspec.structs.replace(self.record, private=""))
        self._unlock()

    @property
    def record(self) -> RunRecord:
        """What the run says of itself while a program works on it."""
        return RunRecord(self.id, str(self.private), self._files, self._token)

    @property
    def ray(self) -> Path:
        """Folder of a Ray cluster that is the run's own."""
        return self.private / "ray"

    def keep_ray_logs(self) -> None:
        """Copy them to `logs/ray`: they may say what ended the run."""
        for logs in self.ray.glob("session_2*/logs"):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(logs, self.path / "logs" / "ray", dirs_exist_ok=True)
                disk.narrow_tree(self.path / "logs" / "ray")

    def _enter(self) -> None:
        try:
            self._make()
            disk.make_folder(self.path / "logs")
            self._lock_out_others()
            self._await_predecessors()
            before = read_record(self.path)
            _remove_private(before)
            if before is not None and before.token:
                self._token = before.token
            # Noted before it is there: a program killed in between leaves nothing unknown.
            write_record(self.path, self.record)
            self.private.mkdir(mode=0o700)
        except OSError as error:
            raise EnvironmentSetupError(
                f"cannot make the run directory {self.path}: {error}; choose another --run-dir"
            ) from error

    def _make(self) -> None:
        """A new directory, or one that this program was told to go on with."""
        disk.make_folder(self.path.parent)
        try:
            disk.make_folder(self.path, 0o700, exist_ok=False)
            return
        except FileExistsError:
            if not self._is_continued:
                refuse_taken(self.path, self._resume)
        with contextlib.suppress(PermissionError):  # another user's, who shares it
            self.path.chmod(0o700)

    def _lock_out_others(self) -> None:
        """The kernel lets go of the lock when this program ends, however it ends."""
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentSetupError(
                f"another program works on {self.path}: stop it first, or choose another --run-id"
            ) from None
        except OSError:
            pass  # a file system without locks; the ledger still has one writer

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _await_predecessors(self) -> None:
        """Processes of a driver that was killed end with it, but not in the same moment."""

        def are_gone(turn_s: float) -> bool:
            if not processes_of(self.path):
                return True
            time.sleep(turn_s)
            return False

        waited = in_turns(are_gone, PREDECESSORS_S, self._check)
        if not waited and (left := processes_of(self.path)):
            raise EnvironmentSetupError(
                f"{self.path} is still being worked on by {len(left)} processes (pids "
                f"{', '.join(map(str, left[:8]))}): stop that run first"
            )

    @property
    def spec(self) -> Path:
        """Where the run's specification lies."""
        return self.private / "spec.json"

    def log(self, process: str) -> str:
        """Log file of a process."""
        return str(self.path / "logs" / f"{process}.log")

    def log_tail(self, process: str, num_lines: int = 12) -> str:
        """Last lines of a process's log, for an error message."""
        try:
            with Path(self.log(process)).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"    {visible(line)}" for line in lines[-num_lines:])


def with_run(config: RunConfig, run: RunDir) -> RunConfig:
    """What the processes of `run` are told: its id, and places that follow its folder."""
    return msgspec.structs.replace(
        config,
        run_id=run.id,
        run_dir=str(run.path.parent),
        save=str(checkpoint_root(config.save, run.path, run.id)),
        save_hf=config.save_hf or str(run.path / "hf"),
    )


def _remove_private(record: RunRecord | None) -> None:
    """Remove the private folder that a killed program left: nothing but a folder of this user's
    that only he may enter, under a name that is ours."""
    if record is None or not record.private:
        return
    path = Path(record.private)
    try:
        status = path.lstat()
    except OSError:
        return
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if is_ours and stat.S_IMODE(status.st_mode) == 0o700 and path.name.startswith(_PRIVATE):
        shutil.rmtree(path, ignore_errors=True)


def role_order(run: RunDir, kind: ProcessKind, name: str, env: Mapping[str, str]) -> ProcessOrder:
    """The order for one of agentrl's own processes."""
    argv = (sys.executable, "-m", "agentrl.cluster.roles", name, str(run.spec))
    return ProcessOrder(name, argv, kind, dict(env), run.log(name))
