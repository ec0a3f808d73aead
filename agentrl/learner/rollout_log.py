"""`--custom-rollout-log-function-path`: a function of the user's logs the samples of an iteration.

It is called in a process of its own, while the iteration is trained, with a file of the whole
lease, which the source rank fetches for it. At the end of the iteration it is waited for, a minute
at most. Whatever becomes of it, and of the file, the iteration goes on; what went wrong is told
with its report.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.clock import Clock
from agentrl.config.run import RunConfig
from agentrl.config.unread import is_read
from agentrl.envs.slime_logs.functions import ROLLOUT
from agentrl.envs.slime_logs.process import AboutRollouts, LogProcess
from agentrl.errors import DataError
from agentrl.learner.lease_client import RowClient
from agentrl.learner.rollouts import write_lease
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader
from agentrl.wire.messages import Logged

__all__ = ["RolloutLog"]

logger = logging.getLogger(__name__)


class RolloutLog:
    """`begin` an iteration, `end` it; does nothing in a run that names no function. On the source
    rank alone."""

    def __init__(self, config: RunConfig, clock: Clock) -> None:
        self._process = LogProcess(config) if is_read(config, ROLLOUT) and _named(config) else None
        self._clock = clock
        self._since = clock.now()
        self._folder: TemporaryDirectory[str] | None = None
        self._failed = ""

    def begin(self, header: LeaseHeader, lineage: Lineage, rows: RowClient) -> None:
        """Have the function called with a lease. Raises what `RowClient.fetch` raises."""
        if self._process is None:
            return
        now = self._clock.now()
        since, self._since = self._since, now
        self._failed = ""
        try:
            self._folder = self._folder or TemporaryDirectory(prefix="agentrl-log-")
            file = self._file
            write_lease(file, header, lineage, rows)
            self._process.ask(AboutRollouts(header.number, str(file), now - since))
        except (DataError, OSError) as error:
            self._failed = f"the samples of iteration {header.number} are not logged: {error}"

    def end(self) -> Logged | None:
        """What it made of the lease; None in a run that names none."""
        if self._process is None:
            return None
        found = Logged(told=self._failed) if self._failed else self._process.answer()
        self._file.unlink(missing_ok=True)  # one that nobody came to read
        if found.told:
            logger.warning("%s", found.told)
        return found

    def close(self) -> None:
        """End its process, and remove what was written for it."""
        if self._process is not None:
            self._process.close()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "lease"


def _named(config: RunConfig) -> bool:
    return config.custom_rollout_log_function_path is not None
