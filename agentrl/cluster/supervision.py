"""What the end, or the silence, of a process means for the run. Pure.

    learner rank exits 0        done once every rank of its life has
    learner rank dies           all ranks are started again: they go on from the newest checkpoint
    engine hangs                killed (`hung.py`), then as one that dies
    engine dies                 unrouted, started again, given the weights, routed
    router dies                 started again; engines are routed anew
    buffer, worker or service   started again
    worker falls silent         killed (its event loop is blocked), then started again
    dies too often              the run ends; but an engine or worker that has others beside it
                                stays down until another iteration was made
    exit 2, 3, 4, 64 or 65      of a learner rank, worker or buffer: nothing that a restart could
                                mend, the run ends with that error; others mean other things by it

A process is started again at most MAX_RESTARTS times without a new iteration. One that is made
again after a recovery is none: else a death that always comes back would never end the run. The
ranks of a learner live and die together: however many of a life die, it is one death.
"""

import signal

from agentrl.cluster.host import ExitNotice
from agentrl.cluster.kinds import KINDS, Consequence
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    DataError,
    EnvironmentSetupError,
    HealthError,
    HookError,
    InfrastructureError,
)

__all__ = [
    "CUT_OFF",
    "HOOK_FAILED",
    "MAX_RESTARTS",
    "Supervision",
    "counts_against_lease",
    "exit_error",
    "has_crashed_learner",
    "must_be_killed",
]

MAX_RESTARTS = 5
#: Exit code of a process that stopped because another part failed it: the buffer, an engine, the
#: network (75 is EX_TEMPFAIL). It is started again, and what it was working on is not suspected.
CUT_OFF = 75
#: Exit code of a process that a function of the user's ended (HookError, with which the run ends as
#: for any DataError): that function is to be mended, whatever it was given.
HOOK_FAILED = 64
_ERRORS: dict[int, type[AgentRLError]] = {
    ConfigError.exit_code: ConfigError,
    EnvironmentSetupError.exit_code: EnvironmentSetupError,
    HealthError.exit_code: HealthError,
    HOOK_FAILED: HookError,
    DataError.exit_code: DataError,
}
#: What the lease of a learner may be the cause of: bad data, and whatever nobody foresaw.
_OF_A_LEASE = (DataError, InfrastructureError)


def exit_error(notice: ExitNotice) -> type[AgentRLError]:
    """The error that a process meant by its return code; InfrastructureError when it meant none."""
    if not KINDS[notice.kind].is_own:
        return InfrastructureError
    return _ERRORS.get(notice.returncode, InfrastructureError)


#: Signals that a process brings upon itself.
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def has_crashed_learner(notice: ExitNotice) -> bool:
    """Whether a rank of the learner has ended, for a cause that it could not name."""
    return notice.kind == "learner" and exit_error(notice) is InfrastructureError


def counts_against_lease(notice: ExitNotice) -> bool:
    """Whether a learner may have ended for the lease that it was in: by bad data, a bug, a fault,
    or a want of memory that the kernel tells of. Not for the configuration, its host, a health
    check or a function of the user's, which are the same in every lease; nor for what somebody did
    to it: the user, whoever ended its host, or a part that it waited for."""
    if notice.returncode < 0:
        return -notice.returncode in _FAULTS or notice.out_of_memory
    return notice.returncode not in (0, CUT_OFF) and exit_error(notice) in _OF_A_LEASE


def must_be_killed(role: str, state: str) -> bool:
    """Whether a peer that the buffer says is `state` stands still: a worker whose event loop is
    blocked. A learner that trains is silent at times."""
    return state == "lost" and role == "worker"


class Supervision:
    """Restart budgets by process name, and which learner ranks are done."""

    def __init__(self, num_learners: int) -> None:
        self._num_learners = num_learners
        self._done: dict[int, set[str]] = {}
        self._fallen = 0
        self._restarts: dict[str, int] = {}
        self._newest = 0

    def ended(
        self, notice: ExitNotice, life: int | None = None, *, can_stay_down: bool = False
    ) -> Consequence:
        """A process ended. `life`: of a learner rank, which life of the learner it belonged to,
        counted from 1; None when the learner has begun another since. `can_stay_down`: others do
        what this one does."""
        if notice.expected:
            return Consequence.NOTHING
        if exit_error(notice) is not InfrastructureError:
            if notice.kind == "learner":  # the other ranks saw a broken collective
                self._fallen = max(self._fallen, life or 0)
            return Consequence.FAIL
        if notice.kind != "learner":
            spent = Consequence.STAY_DOWN if can_stay_down else Consequence.FAIL
            return self._charge(notice.name, KINDS[notice.kind].restart, spent)
        if life is None or life <= self._fallen:
            return Consequence.NOTHING
        if notice.returncode == 0:
            done = self._done.setdefault(life, set())
            done.add(notice.name)
            is_last = len(done) == self._num_learners
            return Consequence.LEARNER_DONE if is_last else Consequence.NOTHING
        self._fallen = life
        return self._charge(notice.kind, KINDS[notice.kind].restart, Consequence.FAIL)

    def stepped(self, number: int) -> bool:
        """Iteration `number` was made. Whether none so late was made before: then restart budgets
        begin again, and what stays down is to be tried again."""
        if number <= self._newest:
            return False
        self._newest = number
        self._restarts.clear()
        return True

    def _charge(self, account: str, restart: Consequence, spent: Consequence) -> Consequence:
        """`restart`, as long as the budget lasts; then `spent`."""
        if self._restarts.get(account, 0) >= MAX_RESTARTS:
            return spent
        self._restarts[account] = self._restarts.get(account, 0) + 1
        return restart
