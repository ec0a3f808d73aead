"""`EvalEngines`: gives the engines of `--eval-mode apart` the weights that are to be evaluated.

An engine says which version it has. So whoever looks sees an engine that was started again, and
gives it the weights once more.
"""

import logging
from collections.abc import Callable, Sequence

import anyio

from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights
from agentrl.serving.control import EngineControl
from agentrl.types import EngineAddress

__all__ = ["EvalEngines"]

_LOG = logging.getLogger(__name__)
_LOOK_S = 2.0


class EvalEngines:
    """Engines that only evaluations use. `engines`: tells where they are now; `timeout_s`: deadline
    of loading; `start_timeout_s`: of the start of an engine; `key`: what they want to be shown."""

    def __init__(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        *,
        timeout_s: float,
        start_timeout_s: float,
        key: str | None,
    ) -> None:
        self._engines = engines
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._key = key

    async def load(self, weights: EvalWeights) -> None:
        """Return when all engines have these weights. Raises EngineError."""
        failed: list[EngineError] = []

        async def give(engine: EngineAddress) -> None:
            async with self._control(engine) as control:
                try:
                    await control.wait_alive(self._start_timeout_s)
                    await _give(control, weights)
                except EngineError as error:
                    failed.append(error)

        async with anyio.create_task_group() as group:
            for engine in self._engines():
                group.start_soon(give, engine)
        if failed:
            raise failed[0]

    async def keep(self, weights: EvalWeights) -> None:
        """Give the weights to every engine that lacks them, until cancelled."""
        while True:
            async with anyio.create_task_group() as group:
                for engine in self._engines():
                    group.start_soon(self._give_again, engine, weights)
            await anyio.sleep(_LOOK_S)

    async def _give_again(self, engine: EngineAddress, weights: EvalWeights) -> None:
        async with self._control(engine) as control:
            try:
                if await control.is_alive():
                    await _give(control, weights)
            except EngineError as error:
                _LOG.warning("%s lacks the weights to evaluate: %s", engine.name, error)

    def _control(self, engine: EngineAddress) -> EngineControl:
        return EngineControl(engine, timeout_s=self._timeout_s, key=self._key)


async def _give(control: EngineControl, weights: EvalWeights) -> None:
    """Load the weights, unless the engine has them."""
    label = str(weights.version)
    if await control.weight_version() == label:
        return
    await control.pause()
    await control.load(str(weights.folder), label)
    await control.resume()
