"""A fleet whose engines are on the sender's host, and read weights from memory that they share.

Engines that share devices with the learner are sent weights so: NCCL refuses two ranks on one
device, and over TCP each engine would have its bytes copied three times more.
"""

from collections.abc import Iterable

import torch
from anyio.from_thread import BlockingPortal

from agentrl.errors import EngineError
from agentrl.serving.buckets import Bucket
from agentrl.serving.control import EngineControl
from agentrl.serving.fleet import Fleet, Outcomes, failures_of, start_calls
from agentrl.serving.shared_memory import handle_of

__all__ = ["SharedFleet"]


class SharedFleet(Fleet):
    """`members` are independent of each other: there is nothing that they join or leave. Payloads
    lie in a `shared_buffer`."""

    def __init__(
        self, members: Iterable[EngineControl], *, name: str, portal: BlockingPortal
    ) -> None:
        super().__init__(members, name=name, portal=portal)
        self._outcomes: Outcomes = {}

    def connect(self) -> None:
        """See `Fleet`."""
        self._settle({})

    def start(
        self, bucket: Bucket, payload: torch.Tensor, label: str | None, keeps_cache: bool = False
    ) -> None:
        """See `Fleet`."""
        num_readers = sum(member.engine.num_ranks for member in self.members)
        handle = handle_of(bucket._replace(payload=payload), num_readers)
        self._outcomes = start_calls(
            self._portal,
            self.members,
            lambda member: member.read_bucket(handle, label=label, keeps_cache=keeps_cache),
        )

    def finish(self) -> None:
        """See `Fleet`."""
        outcomes, self._outcomes = self._outcomes, {}
        self._settle(failures_of(outcomes))

    def dissolve(self) -> dict[EngineControl, EngineError]:
        """See `Fleet`; after trouble, it looks who answers."""
        self.connected = False
        if self._trouble is None:
            return {}
        return failures_of(start_calls(self._portal, self.members, EngineControl.require_alive))
