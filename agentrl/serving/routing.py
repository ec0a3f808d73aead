"""`RoutedWeightSink`: an engine is in the router exactly while it holds published weights.

    weights arrived everywhere -> engines that the router lacks are added
    an engine fell out         -> it is removed

Engines that share devices with the learner have no cache yet when their weights arrive: they are
added once they serve (`serve`).

So an engine that came back, and a router that came back without engines, are served by the next
push, and nobody else has to know which of them have which weights.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

import anyio

from agentrl.errors import EngineError
from agentrl.serving.router_control import RouterControl
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, PushReport, WeightSink

__all__ = ["RoutedWeightSink"]

logger = logging.getLogger(__name__)


class RoutedWeightSink:
    """A `WeightSink`. `open_sink` makes the sink below, told what to do with an engine that is
    lost. `key`: what the router and the engines want to be shown. `timeout_s`: deadline of the
    router's answers, and of its coming up."""

    def __init__(
        self,
        router_url: str,
        engines: Iterable[EngineAddress],
        open_sink: Callable[[Callable[[EngineAddress], None]], WeightSink],
        key: str | None = None,
        *,
        shares_devices: bool = False,
        timeout_s: float = 30.0,
    ) -> None:
        self._key, self._timeout_s = key, timeout_s
        self._router_url = router_url
        self._engines = {engine.name: engine for engine in engines}
        self._sink = open_sink(self._unroute)
        self._shares_devices = shares_devices
        self._reached: tuple[str, ...] = ()

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        """See `WeightSink`. A router that stays away is logged: the driver brings it back and asks
        for the weights again."""
        report = self._sink.publish(version, tensors)
        self._reached = report.engines
        if not self._shares_devices:
            self._tell_router()
        return report

    @property
    def _memory(self) -> FleetWeightSink:
        """What shares devices sends whole weights."""
        return cast(FleetWeightSink, self._sink)

    def release(self) -> None:
        """See `EngineMemory` of the learner."""
        self._memory.release()

    def take_weights(self) -> None:
        """See `EngineMemory` of the learner."""
        self._memory.take_weights()

    def serve(self) -> None:
        """See `EngineMemory` of the learner. Turns are sent from here on."""
        self._memory.serve()
        self._tell_router()

    def _tell_router(self) -> None:
        try:
            anyio.run(self._route, self._reached)
        except EngineError as error:
            logger.warning("the router could not be told of the engines: %s", error)

    def inspect(self) -> None:
        """See `WeightSink`."""
        self._sink.inspect()

    def verify(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """See `WeightSink`."""
        self._sink.verify(tensors)

    def moved(self, engines: Iterable[EngineAddress]) -> None:
        """See `WeightSink`. Whoever moved an engine has taken it out of the router."""
        engines = list(engines)
        self._engines |= {engine.name: engine for engine in engines}
        self._sink.moved(engines)

    def close(self) -> None:
        """See `WeightSink`."""
        self._sink.close()

    async def _route(self, names: Iterable[str]) -> None:
        async with self._router() as router:
            # At the first push it may be about to start, and nobody would ask for another.
            routed = await router.wait_workers(self._timeout_s)
            for name in names:
                engine = self._engines[name]
                if engine.url not in routed:
                    await router.add(engine, deadline_s=2 * self._timeout_s)
                    logger.info("%s is routed", name)

    def _unroute(self, engine: EngineAddress) -> None:
        """It may be paused or hold old weights."""
        logger.error("%s is lost to weight pushes and leaves the router", engine.name)
        try:
            anyio.run(self._remove, engine)
        except EngineError as error:
            logger.warning("the router could not be told: %s", error)

    def _router(self) -> RouterControl:
        return RouterControl(self._router_url, timeout_s=self._timeout_s, key=self._key)

    async def _remove(self, engine: EngineAddress) -> None:
        async with self._router() as router:
            await router.remove(engine, deadline_s=self._timeout_s)
