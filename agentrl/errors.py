"""Every error agentrl raises on purpose.

    AgentRLError
    ├── ConfigError (ValueError)             a flag, file or combination that cannot run; exit 2
    ├── EnvironmentSetupError (RuntimeError) the host lacks something (port, package); exit 3
    ├── DataError (ValueError)               bad bytes, row or Env: again fails again; exit 65
    │   ├── FrameError                       a damaged or oversized wire frame
    │   │   └── ProtocolVersionError         a whole frame of another protocol version
    │   ├── StoreError                       a stored payload or ledger row fails its checksum
    │   ├── EnvError                         user code (Env, tool, judge) raised
    │   ├── HookError                        a function that a flag names gave what it may not
    │   ├── ChatError                        an agent's call to its model was refused
    │   ├── TextTooLongError                 a text of more tokens than a model can read
    │   ├── PromptTooLongError               a task whose first prompt does not fit
    │   └── TokenError                       tokens that break an invariant of TokenStream
    ├── InfrastructureError (RuntimeError)   a process or network failed: retryable
    │   ├── EngineError                      an engine or the router failed or missed a deadline
    │   ├── PeerLostError                    the buffer, a worker or the learner is gone
    │   ├── PushError                        a weight push did not reach every engine
    │   └── RestartsSpentError               a process died too often without a new iteration
    ├── FencedError (RuntimeError)           replaced by a newer epoch: this process must exit
    └── HealthError (RuntimeError)           a health check stopped the run; exit 4

`retryable` says whether the same work may be tried again unchanged. An error of no class here is
not retryable.
"""

from typing import ClassVar

__all__ = [
    "AgentRLError",
    "ChatError",
    "ConfigError",
    "DataError",
    "EngineError",
    "EnvError",
    "EnvironmentSetupError",
    "FencedError",
    "FrameError",
    "HealthError",
    "HookError",
    "InfrastructureError",
    "PeerLostError",
    "PromptTooLongError",
    "ProtocolVersionError",
    "PushError",
    "RestartsSpentError",
    "StoreError",
    "TextTooLongError",
    "TokenError",
]


class AgentRLError(Exception):
    """Base of every error raised on purpose; `retryable` and `exit_code` are class facts."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 70


class ConfigError(AgentRLError, ValueError):
    """A flag, file or combination of flags that cannot run."""

    exit_code = 2


class EnvironmentSetupError(AgentRLError, RuntimeError):
    """The host lacks something the run needs: a port, memory, a package, a model directory."""

    exit_code = 3


class DataError(AgentRLError, ValueError):
    """Bad data: running the same work again will fail again."""

    exit_code = 65


class FrameError(DataError):
    """A wire frame that is damaged, oversized or of another protocol version."""


class ProtocolVersionError(FrameError):
    """A wire frame of another protocol version: the two processes run different code."""


class StoreError(DataError):
    """A stored payload or ledger row that fails its check."""


class EnvError(DataError):
    """User code (Env, tool, judge, filter) raised."""


class HookError(DataError):
    """A function that a flag names gave what it may not; the text ends with its line."""


class ChatError(DataError):
    """A call of an agent to its model that was refused: malformed, beyond a budget, or too late.

    `status` is the HTTP status of the refusal, `code` the word for programs, `param` the field of
    the request that is at fault, if one is.
    """

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class TextTooLongError(DataError):
    """A text of more tokens than a model can read; it has been encoded in vain, or not at all."""


class PromptTooLongError(DataError):
    """The first prompt of a task does not fit: no fault of the Env, and no other attempt helps."""


class GivenUpError(DataError):
    """A function of the user's has taken an episode and left it out of what it returned: no fault
    of the Env, and no other attempt is made."""


class TokenError(DataError):
    """A token sequence that breaks an invariant of TokenStream."""


class InfrastructureError(AgentRLError, RuntimeError):
    """A process, disk or network failed; the work itself may be tried again."""

    retryable = True


class EngineError(InfrastructureError):
    """An engine or the router failed a request or missed its deadline."""


class PeerLostError(InfrastructureError):
    """A peer process (buffer, worker, learner) stopped answering."""


class PushError(InfrastructureError):
    """A weight push did not reach every engine of its fleet."""


class SlotLostError(InfrastructureError):
    """The host of some processes is gone, and they with it: a node of a cluster was lost."""


class RestartsSpentError(InfrastructureError):
    """A process died too often without a new iteration. `told`: the same in a clause."""

    def __init__(self, message: str, *, told: str) -> None:
        super().__init__(message)
        self.told = told


class FencedError(AgentRLError, RuntimeError):
    """This process has been replaced by a newer epoch of the same name and must exit."""


class HealthError(AgentRLError, RuntimeError):
    """A health check stopped the run."""

    exit_code = 4
