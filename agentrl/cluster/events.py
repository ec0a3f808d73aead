"""What the driver knows of the run, from the buffer's events: something to wait on."""

from collections.abc import Callable
from typing import Any

import anyio

from agentrl.wire.messages import Event, Welcome

__all__ = ["RunState"]


class RunState:
    """The latest facts of a run; `wait` returns when a condition on them holds."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.leases = 0
        self.steps = 0
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.fates: dict[str, int] = {}
        self.echoes: set[str] = set()
        self.learner_done = False
        self.drained = False
        self._changed = anyio.Event()

    def continue_from(self, welcome: Welcome) -> None:
        """Take over what the ledger of a continued run already holds. The version is the learner's
        to say: until it has published, engines hold nothing."""
        self.leases = welcome.last_lease

    def apply(self, event: Event) -> None:
        """Take in an event."""
        match event.kind:
            case "published":
                self.version = int(event.data["version"])
            case "lease":
                self.leases = int(event.data["number"])
            case "step":
                self.steps = int(event.data["number"])
            case "evaluation":
                self.evaluations[str(event.data["id"])] = event.data
            case "echo":
                self.echoes.add(str(event.data["id"]))
            case "drained":
                self.drained = True
            case "fates":
                self.fates = {str(k): int(v) for k, v in event.data["counts"].items()}
        self.notify()

    def notify(self) -> None:
        """Wake every waiter."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, condition: Callable[["RunState"], bool]) -> None:
        """Return once `condition(self)` holds."""
        while not condition(self):
            await self._changed.wait()
