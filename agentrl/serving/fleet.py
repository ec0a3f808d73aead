"""A fleet: engines that are given weights together.

    FORMED -> CONNECTED -> (a member is lost or joins, or a call fails) -> FORMED

When a call fails the fleet is no longer connected; `repair` finds the members that no longer
answer, and it gets the whole push again. How a bucket reaches them is `collective_fleet`'s and
`shared_fleet`'s. All calls come from the thread that publishes; HTTP runs in the portal's event
loop.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future

import torch
from anyio.from_thread import BlockingPortal

from agentrl.errors import EngineError, PushError
from agentrl.serving.buckets import Bucket
from agentrl.serving.control import EngineControl

__all__ = ["Call", "Fleet", "Outcomes", "failures_of", "start_calls"]

logger = logging.getLogger(__name__)

Call = Callable[[EngineControl], Awaitable[None]]
#: By member, what its call came to: its EngineError, or None.
Outcomes = dict[EngineControl, Future[EngineError | None]]


async def _outcome_of(call: Call, member: EngineControl) -> EngineError | None:
    try:
        await call(member)
    except EngineError as error:
        return error
    return None


def start_calls(portal: BlockingPortal, members: Iterable[EngineControl], call: Call) -> Outcomes:
    """Make the same call to all `members` at once, in the portal's loop. Every call has its own
    deadline, so every future ends."""
    return {member: portal.start_task_soon(_outcome_of, call, member) for member in members}


def failures_of(outcomes: Outcomes) -> dict[EngineControl, EngineError]:
    """Wait for all outcomes; members whose call failed or was given up, and why."""
    results = {
        member: EngineError(f"{member.name} stayed in a broadcast that another engine had left")
        if outcome.cancelled()
        else outcome.result()
        for member, outcome in outcomes.items()
    }
    return {member: error for member, error in results.items() if error is not None}


class Fleet(ABC):
    """`members` in order, and whether the next bucket can be sent to them (`connected`)."""

    def __init__(
        self, members: Iterable[EngineControl], *, name: str, portal: BlockingPortal
    ) -> None:
        self.members = list(members)
        self.name = name
        self._portal = portal
        self._trouble: Exception | None = None
        self._suspects: list[EngineControl] = []
        self._strikes = 0
        self.connected = False

    def enlist(self, member: EngineControl) -> None:
        """Add a member; the collective is built anew before the next bucket."""
        self.members.append(member)
        self.connected = False

    def drop(self, member: EngineControl) -> None:
        """Remove a member; the collective is built anew before the next bucket."""
        self.members.remove(member)
        self.connected = False

    @abstractmethod
    def connect(self) -> None:
        """Make ready for buckets, with all members. Look at `connected` for the result."""

    @abstractmethod
    def start(
        self, bucket: Bucket, payload: torch.Tensor, label: str | None, keeps_cache: bool = False
    ) -> None:
        """Start sending a bucket. `payload`: its tensor on the device of the sink. `label`: the
        version, with the last bucket. `keeps_cache`: engines were paused in place and keep it."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until the bucket has arrived everywhere. Look at `connected` for the result."""

    @abstractmethod
    def dissolve(self) -> dict[EngineControl, EngineError]:
        """End what connects them; members that did not answer, and why."""

    def delivered(self) -> None:
        """A whole set of weights has arrived: earlier failures are forgotten."""
        self._strikes = 0

    def repair(self) -> dict[EngineControl, Exception]:
        """End what connects them and drop the members that are lost, with the reason.

        Lost are those that do not answer. When all answer, a second failure in a row loses those
        that reported it. Raises PushError when nobody did: then the sender is at fault.
        """
        lost = dict[EngineControl, Exception](self.dissolve())
        if not lost and self._trouble is not None:
            logger.warning("%s failed in a weight push: %s", self.name, self._trouble)
            self._strikes += 1
            if self._strikes > 1 and not self._suspects:
                raise PushError(
                    f"weights could not be sent although {len(self.members)} engines answer:"
                    f" {self._trouble}"
                ) from self._trouble
            if self._strikes > 1:
                lost = dict.fromkeys(self._suspects, self._trouble)
        self._trouble, self._suspects = None, []
        for member in lost:
            self.members.remove(member)
        return lost

    def _settle(
        self, failures: Mapping[EngineControl, EngineError], trouble: Exception | None = None
    ) -> None:
        """Take in what a bucket came to: which calls failed, and what else went wrong."""
        self._suspects = list(failures)
        self._trouble = next(iter(failures.values()), trouble)
        self.connected = self._trouble is None
