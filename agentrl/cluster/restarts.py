"""Starting processes, and starting them again: what each kind needs so that the run goes on.

    learner rank       all ranks end and start together
    engine, router     started; once it answers, the learner is told, which gives late engines the
                       weights and routes whoever has them
    worker             the buffer is told first, so that its episodes are queued again
    buffer, service    started; whoever spoke to it asks again

Of a process that was replaced meanwhile nothing more needs to be done.
"""

import logging
import signal
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.layout import RUN_MARK
from agentrl.cluster.placement import Cluster
from agentrl.cluster.services import wait_ready
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.supervision import Consequence
from agentrl.errors import EngineError
from agentrl.serving.control import RouterControl
from agentrl.wire.messages import PeerLost
from agentrl.wire.peer import BufferPeer

__all__ = ["Processes", "in_thread"]

_LOG = logging.getLogger(__name__)


class Processes:
    """The processes of a run, by name. `ready_urls`: what answers once a process is ready."""

    def __init__(
        self,
        cluster: Cluster,
        spec: RunSpec,
        orders: Sequence[ProcessOrder],
        ready_urls: dict[str, str],
        peer: BufferPeer,
    ) -> None:
        self._cluster = cluster
        self._spec = spec
        self._orders = {order.name: order for order in orders}
        self._ready_urls = ready_urls
        self._peer = peer
        self._pids: dict[str, int] = {}
        self._one_at_a_time = anyio.Lock()

    @property
    def names(self) -> list[str]:
        """In starting order."""
        return list(self._orders)

    async def start(self, name: str) -> None:
        """Start a process that is not running."""
        order = self._orders[name]
        marked = msgspec.structs.replace(order, env={**order.env, RUN_MARK: self._spec.run_dir})
        self._pids[name] = await in_thread(self._cluster.start, marked)
        _LOG.info("started %s (pid %s)", name, self._pids[name])

    async def kill(self, name: str) -> None:
        """End a process that does not answer."""
        await in_thread(self._cluster.signal, name, signal.SIGKILL)

    async def restart(self, notice: ExitNotice, consequence: Consequence) -> None:
        """Start again what `notice` tells of."""
        async with self._one_at_a_time:
            if self._pids.get(notice.name) != notice.pid:
                return
            match consequence:
                case Consequence.RESTART_LEARNER:
                    await self._restart_learner()
                case Consequence.RESTART_ENGINE:
                    await self._unroute(notice.name)
                    await self.start(notice.name)
                case _:
                    if notice.name.startswith("worker-"):
                        await self._peer.deliver(PeerLost(notice.name))
                    await self.start(notice.name)
        if consequence in (Consequence.RESTART_ENGINE, Consequence.RESTART_ROUTER):
            url = {notice.name: self._ready_urls[notice.name]}
            await wait_ready(url, self._spec.config.start_timeout_s)
            await in_thread(self._cluster.signal, "learner-0", signal.SIGUSR1)

    async def _restart_learner(self) -> None:
        ranks = [name for name in self._orders if name.startswith("learner-")]
        await in_thread(self._cluster.stop, ranks, 0.0)
        for rank in ranks:
            await self.start(rank)

    async def _unroute(self, name: str) -> None:
        """Requests must not go where nobody is."""
        (engine,) = [engine for engine in self._spec.engines if engine.name == name]
        assert self._spec.router_url is not None
        try:
            async with RouterControl(self._spec.router_url, timeout_s=5.0) as router:
                await router.remove(engine, deadline_s=10.0)
        except EngineError as error:
            _LOG.warning("%s could not be unrouted: %s", name, error)


async def in_thread(function: Any, *args: Any) -> Any:
    """Call something that waits, beside the event loop."""
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=True)
