"""`LabelSink`: new numbers for weights that stay as they are (`--debug-rollout-only`).

Engines play with the weights that they began with. A push tells each of them the next version, so
that tokens, leases and ages are counted as in a run that trains; turns in flight go on.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import anyio

from agentrl.clock import Clock
from agentrl.errors import EngineError, PushError
from agentrl.serving.control import EngineControl
from agentrl.types import EngineAddress, PushReport

__all__ = ["LabelSink"]

logger = logging.getLogger(__name__)

#: Between two tries while no engine answers.
_RETRY_S = 1.0


class LabelSink:
    """A `WeightSink` that sends no weights. `on_lost` is told of an engine that does not answer."""

    def __init__(
        self,
        engines: Iterable[EngineAddress],
        *,
        timeout_s: float,
        on_lost: Callable[[EngineAddress], None],
        clock: Clock,
        key: str | None = None,
    ) -> None:
        self._engines = tuple(engines)
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._clock = clock
        self._key = key

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        """Have every engine call what it holds `version`; `tensors` are not asked for. When none
        answers it waits for one, up to the deadline; raises PushError then."""
        began = self._clock.now()
        while not (reached := anyio.run(self._tell, version)):
            if self._clock.now() - began >= self._timeout_s:
                raise PushError(f"version {version} was told to no engine: all of them are lost")
            time.sleep(_RETRY_S)
        return PushReport(version, 0.0, self._clock.now() - began, 0, tuple(reached))

    async def _tell(self, version: int) -> list[str]:
        reached: list[str] = []
        async with anyio.create_task_group() as group:
            for engine in self._engines:
                group.start_soon(self._tell_one, engine, version, reached)
        for engine in self._engines:
            if engine.name not in reached:
                await anyio.to_thread.run_sync(self._on_lost, engine)
        return sorted(reached)

    async def _tell_one(self, engine: EngineAddress, version: int, reached: list[str]) -> None:
        try:
            async with EngineControl(engine, timeout_s=self._timeout_s, key=self._key) as control:
                await control.require_alive()
                await control.label(str(version))
        except EngineError as error:
            logger.warning("%s is not told version %d: %s", engine.name, version, error)
        else:
            reached.append(engine.name)

    def inspect(self) -> None:
        """Nothing was sent that could have changed."""

    def verify(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Nothing was sent that could differ."""

    def moved(self, engines: Iterable[EngineAddress]) -> None:
        """See `WeightSink`."""
        known = {engine.name: engine for engine in (*self._engines, *engines)}
        self._engines = tuple(known.values())

    def close(self) -> None:
        """Nothing is held between pushes."""
