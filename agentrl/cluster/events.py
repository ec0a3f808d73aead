"""What the driver knows of the run, from the buffer's events: something to wait on."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio

from agentrl.cluster.failures import FailedLeases, FailureStreak
from agentrl.wire.messages import Event, Welcome

__all__ = ["RunState"]


class RunState:
    """The latest facts of a run; `wait` returns when a condition on them holds. `iteration`: how
    many the published weights contain; `last_lease`: the number of the run's last, once it is made;
    `eval_weights`: versions, with their iterations, that were written to be evaluated; `starts`:
    how often each process was started."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.iteration = 0
        self.push_pause_s = 0.0
        self.leases = 0
        self.last_lease: int | None = None
        self.steps = 0
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.eval_weights: list[tuple[int, int]] = []
        self.starts: Counter[str] = Counter()
        self.echoes: set[str] = set()
        self.failures = FailureStreak()
        self.failed_leases = FailedLeases()
        self.learner_done = False
        self.drained = False
        self._published_before = self._announced = -1
        self._changed = anyio.Event()

    @property
    def is_pushing(self) -> bool:
        """Whether weights are announced that engines do not serve yet."""
        return self._announced > (-1 if self.version is None else self.version)

    def continue_from(self, welcome: Welcome) -> None:
        """Take over what the ledger of a continued run already holds. The version is the learner's
        to say: until it has published, engines hold nothing."""
        self._published_before = welcome.published_version
        self.reconcile(welcome)
        self.failures.begin(welcome.fates)

    def reconcile(self, welcome: Welcome) -> int:
        """Learn from the ledger what a buffer that died had still to tell; returns how many
        iterations nothing else is known of."""
        missed = max(0, welcome.stepped - self.steps)
        self.leases = welcome.last_lease
        self.steps += missed
        self.failures.fates(welcome.fates)
        if missed:
            self.failures.stepped()
        if welcome.published_version > self._published_before:
            self.version = welcome.published_version
            iterations = {row.version: row.iteration for row in welcome.versions}
            self.iteration = iterations.get(self.version, self.iteration)
        self.notify()
        return missed

    def apply(self, event: Event) -> None:
        """Take in an event."""
        match event.kind:
            case "publishing":
                self._announced = int(event.data["version"])
            case "published":
                self.version = int(event.data["version"])
                costs = event.data.get("metrics", {})
                self.push_pause_s = costs.get("perf/push_pause_s", self.push_pause_s)
                # A learner that begins again says so: what came later will be made again.
                self.steps = self.iteration = int(event.data["iteration"])
            case "lease":
                self.leases = int(event.data["number"])
                self.last_lease = self.leases if event.data["last"] else None
            case "step":
                self.steps = int(event.data["number"])
                self.failed_leases.stepped(self.steps)
                self.failures.stepped()
            case "lease_failed":
                self.failed_leases.take(event.data)
                if event.data["given_up"]:
                    self.failures.given_up(len(event.data["groups"]))
            case "lease_left":
                self.failed_leases.left(event.data)
            case "evaluation":
                self.evaluations[str(event.data["id"])] = event.data
            case "eval_weights":
                self.eval_weights.append((event.data["version"], event.data["iteration"]))
            case "echo":
                self.echoes.add(str(event.data["id"]))
            case "drained":
                self.drained = True
            case "fates":
                self.failures.fates(event.data["counts"], event.data.get("too_long", 0))
        self.notify()

    def started(self, name: str) -> None:
        """A process was started."""
        self.starts[name] += 1
        self.notify()

    def notify(self) -> None:
        """Wake every waiter."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, condition: Callable[["RunState"], bool]) -> None:
        """Return once `condition(self)` holds."""
        while not condition(self):
            await self._changed.wait()
