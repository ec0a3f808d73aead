"""A fleet whose engines receive weights over one collective.

A collective cannot lose a rank and go on. When a call fails the fleet is no longer connected, and
the broadcast is given up, for the sender may not see that a receiver is gone; engines that stay in
it are lost too, for nothing on their side ends it. Over gloo an engine that refuses a bucket leaves
the collective, and the broadcast ends by itself.
`repair` closes the collective on both sides (that of NCCL by an abort), which also frees engines
that still wait inside a broadcast, and finds the members that no longer answer. A sender that died
closed nothing on the engines' side, so a member leaves the collective of this name before it joins.
All calls come from the thread that publishes; HTTP runs in the portal's event loop, beside the
broadcast.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

import torch
import torch.distributed as dist
from anyio.from_thread import BlockingPortal

from agentrl.errors import EngineError
from agentrl.serving.buckets import Bucket
from agentrl.serving.collective import SenderGroup
from agentrl.serving.control import EngineControl
from agentrl.serving.fleet import Fleet, Outcomes, failures_of, start_calls
from agentrl.serving.http_control import EngineRefusedError

__all__ = ["CollectiveFleet"]

#: Seconds that an engine may take to say that a rendezvous or a broadcast has failed.
_MARGIN_S = 10.0


class CollectiveFleet(Fleet):
    """`members` in rank order, each with the ranks of its engine. `open_group` makes the sender's
    side of a new collective, given its `name`. `margin_s`: how long an engine may take to say that
    a rendezvous or a broadcast has failed."""

    def __init__(
        self,
        members: Iterable[EngineControl],
        *,
        name: str,
        portal: BlockingPortal,
        open_group: Callable[[str], SenderGroup],
        margin_s: float | None = None,
    ) -> None:
        super().__init__(members, name=name, portal=portal)
        self._open_group = open_group
        self._margin_s = _MARGIN_S if margin_s is None else margin_s
        self._group: SenderGroup | None = None
        self._transfer: tuple[Outcomes, Future[dist.Work] | None] = ({}, None)

    def connect(self) -> None:
        """Build the collective with all members; see `Fleet`."""
        group = self._group = self._open_group(self.name)
        first = 1
        ranks: dict[EngineControl, int] = {}
        for member in self.members:
            ranks[member], first = first, first + member.engine.num_ranks
        world_size = first

        async def join(member: EngineControl) -> None:
            await member.destroy_group(group.name)
            await member.init_group(
                group=group.name,
                host=group.host,
                port=group.port,
                rank=ranks[member],
                world_size=world_size,
                backend=group.backend,
                timeout_s=group.connect_s + self._margin_s,
            )

        outcomes = start_calls(self._portal, self.members, join)
        trouble: Exception | None = None
        try:
            group.connect(world_size)
        except RuntimeError as error:
            trouble = error.with_traceback(None)  # its frames would keep the store open
            self._take_down(group)  # an engine that still waits for the rendezvous sees it fail
        self._settle(failures_of(outcomes), trouble)

    def start(
        self, bucket: Bucket, payload: torch.Tensor, label: str | None, keeps_cache: bool = False
    ) -> None:
        """See `Fleet`. `payload` is on the collective's device."""
        group = self._group
        assert group is not None

        async def receive(member: EngineControl) -> None:
            try:
                await member.receive_bucket(
                    group=group.name,
                    names=bucket.names,
                    dtypes=bucket.dtypes,
                    shapes=bucket.shapes,
                    label=label,
                    keeps_cache=keeps_cache,
                )
            except EngineRefusedError:
                # It is not in the broadcast: leaving the group ends our wait for it at once.
                await member.destroy_group(group.name)
                raise

        outcomes = start_calls(self._portal, self.members, receive)
        self._transfer = (outcomes, group.broadcast(payload))

    def finish(self) -> None:
        """See `Fleet`."""
        outcomes, sent = self._transfer
        self._transfer = ({}, None)
        trouble: Exception | None = None
        if sent is not None and not self._gives_up(outcomes, sent):
            try:
                sent.result().wait()
            except RuntimeError as error:
                trouble = error.with_traceback(None)
        del sent  # it would keep the connections open
        if trouble is not None and self._group is not None:
            self._take_down(self._group)  # engines that still wait for it see it fail
            self._give_up(outcomes.values())  # but one that began to wait at that moment may not
        self._settle(failures_of(outcomes), trouble)

    def dissolve(self) -> dict[EngineControl, EngineError]:
        """Close the collective on both sides; members that did not answer, and why."""
        self.connected = False
        if self._group is None:
            return {}
        name = self._group.name
        self._take_down(self._group)
        self._group = None
        leave = start_calls(self._portal, self.members, lambda member: member.destroy_group(name))
        return failures_of(leave)

    @staticmethod
    def _take_down(group: SenderGroup) -> None:
        """Close the sender's side, when no broadcast is under way. NCCL's own shutdown waits for
        peers that are gone, and which are is not known yet: its group is aborted."""
        if group.sees_losses:
            group.close()
        else:
            group.abort()

    def _gives_up(self, outcomes: Outcomes, sent: Future[dist.Work]) -> bool:
        """Wait for the calls, until one fails. Whether the broadcast was then given up, with the
        calls that this does not free."""
        assert self._group is not None
        pending, failed = set(outcomes.values()), list[EngineError]()
        while pending and not failed:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            failed = [error for outcome in done if (error := outcome.result()) is not None]
        have_left = self._group.sees_losses and all(
            isinstance(e, EngineRefusedError) for e in failed
        )
        if not failed or have_left:
            return False
        self._group.abort(sent)
        self._give_up(pending)
        return True

    def _give_up(self, calls: Iterable[Future[EngineError | None]]) -> None:
        """Wait no longer for calls that the end of a broadcast does not free."""
        _, stuck = wait(calls, timeout=self._margin_s)
        for outcome in stuck:
            outcome.cancel()
