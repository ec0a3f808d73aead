"""What the end, or the silence, of a process means for the run. Pure.

learner rank exits 0      done once every rank has
worker dies               started again, at most MAX_RESTARTS times between two iterations
worker falls silent       killed (its event loop is blocked), then started again
exit 2, 3, 4 or 65        nothing that a restart could mend: the run ends with that error
anything else             the run ends
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
    LEARNER_DONE = auto()
    FAIL = auto()


class Supervision:
    """Restart budgets and who is connected, by process name."""

    def __init__(self, num_learners: int) -> None:
        self._learners_left = num_learners
        self._restarts: dict[str, int] = {}
        self._connected: set[str] = set()

    def ended(self, notice: ExitNotice) -> Consequence:
        """A process ended."""
        self._connected.discard(notice.name)
        if notice.expected:
            return Consequence.NOTHING
        if notice.name.startswith("learner-") and notice.returncode == 0:
            self._learners_left -= 1
            return Consequence.NOTHING if self._learners_left else Consequence.LEARNER_DONE
        restartable = notice.name.startswith("worker-") and notice.returncode not in _ERRORS
        if not restartable or self._restarts.get(notice.name, 0) >= MAX_RESTARTS:
            return Consequence.FAIL
        self._restarts[notice.name] = self._restarts.get(notice.name, 0) + 1
        return Consequence.RESTART

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
