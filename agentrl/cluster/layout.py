"""Names and places of a run: its directory, log files, private socket folder and process orders."""

import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from agentrl.cluster.host import ProcessOrder
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, EnvironmentSetupError

__all__ = ["RUN_MARK", "RunDir", "processes_of", "role_order"]

#: Environment variable of every process of a run: its run directory.
RUN_MARK = "AGENTRL_RUN"


#: Seconds that the processes of a killed driver have to end.
PREDECESSORS_S = 15.0


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
    most about 100 characters.
    """

    def __init__(self, config: RunConfig) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.id = config.run_id or f"{stamp}-{secrets.token_hex(2)}"
        self._is_resumed = config.resume != "never"
        self.path = Path(config.run_dir).resolve() / self.id
        self.private = Path(tempfile.gettempdir())

    def __enter__(self) -> "RunDir":
        try:
            self.path.mkdir(parents=True, exist_ok=self._is_resumed)
            (self.path / "logs").mkdir(exist_ok=self._is_resumed)
        except FileExistsError as error:
            raise ConfigError(
                f"{self.path} exists; choose another --run-id, or continue it: --resume {self.path}"
            ) from error
        except OSError as error:
            raise EnvironmentSetupError(
                f"cannot make the run directory {self.path}: {error.strerror}; choose another "
                "--run-dir"
            ) from error
        if self._is_resumed:
            self._await_predecessors()
        self.private = Path(tempfile.mkdtemp(prefix="agentrl-"))
        return self

    def _await_predecessors(self) -> None:
        """Processes of a driver that was killed end with it, but not in the same moment."""
        deadline = time.monotonic() + PREDECESSORS_S
        while left := processes_of(self.path):
            if time.monotonic() > deadline:
                raise EnvironmentSetupError(
                    f"{self.path} is still being worked on by {len(left)} processes (pids "
                    f"{', '.join(map(str, left[:8]))}): stop that run first"
                )
            time.sleep(0.1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.private, ignore_errors=True)

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
            lines = Path(self.log(process)).read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"    {line}" for line in lines[-num_lines:])


def role_order(run: RunDir, name: str, env: Mapping[str, str] | None = None) -> ProcessOrder:
    """The order for one of agentrl's own processes."""
    argv = (sys.executable, "-m", "agentrl.cluster.roles", name, str(run.spec))
    return ProcessOrder(name, argv, dict(env or {}), run.log(name))
