"""What the end, or the silence, of a process means for the run. Pure.

    learner rank exits 0        done once every rank has
    learner rank dies           all ranks are started again: they go on from the newest checkpoint
    engine dies                 unrouted, started again, given the weights, routed
    router dies                 started again; engines are routed anew
    buffer, worker or service   started again
    worker falls silent         killed (its event loop is blocked), then started again
    exit 2, 3, 4 or 65          nothing that a restart could mend: the run ends with that error

A process is started again at most MAX_RESTARTS times between two iterations.
"""

from enum import Enum, auto

from agentrl.cluster.host import ExitNotice
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    DataError,
    EnvironmentSetupError,
    HealthError,
    InfrastructureError,
)

__all__ = ["MAX_RESTARTS", "Consequence", "Supervision", "exit_error"]

MAX_RESTARTS = 5
_ERRORS: dict[int, type[AgentRLError]] = {
    kind.exit_code: kind for kind in (ConfigError, EnvironmentSetupError, HealthError, DataError)
}


def exit_error(returncode: int) -> type[AgentRLError]:
    """The error that a process meant by its return code; InfrastructureError when it meant none."""
    return _ERRORS.get(returncode, InfrastructureError)


class Consequence(Enum):
    """What the driver does about an exit."""

    NOTHING = auto()
    RESTART = auto()
    RESTART_ENGINE = auto()
    RESTART_ROUTER = auto()
    RESTART_LEARNER = auto()
    LEARNER_DONE = auto()
    FAIL = auto()


_RESTARTS = {
    "engine": Consequence.RESTART_ENGINE,
    "router": Consequence.RESTART_ROUTER,
    "learner": Consequence.RESTART_LEARNER,
}


class Supervision:
    """Restart budgets and who is connected, by process name."""

    def __init__(self, num_learners: int) -> None:
        self._num_learners = num_learners
        self._done: set[str] = set()
        self._restarts: dict[str, int] = {}
        self._connected: set[str] = set()

    def ended(self, notice: ExitNotice) -> Consequence:
        """A process ended."""
        self._connected.discard(notice.name)
        if notice.expected:
            return Consequence.NOTHING
        kind = notice.name.partition("-")[0]
        if kind == "learner" and notice.returncode == 0:
            self._done.add(notice.name)
            is_last = len(self._done) == self._num_learners
            return Consequence.LEARNER_DONE if is_last else Consequence.NOTHING
        # The ranks of a learner live and die together.
        account = kind if kind == "learner" else notice.name
        if notice.returncode in _ERRORS or self._restarts.get(account, 0) >= MAX_RESTARTS:
            return Consequence.FAIL
        self._restarts[account] = self._restarts.get(account, 0) + 1
        if kind == "learner":
            self._done.clear()
        return _RESTARTS.get(kind, Consequence.RESTART)

    def peer(self, name: str, state: str) -> bool:
        """A peer of the buffer joined, came back or was lost. Whether its process must be killed:
        it had said hello since it started, and is silent now."""
        if state != "lost":
            self._connected.add(name)
            return False
        silent = name in self._connected and name.startswith("worker-")
        self._connected.discard(name)
        return silent

    def stepped(self) -> None:
        """An iteration was made: restart budgets begin again."""
        self._restarts.clear()
