"""`EvalEngines`: gives the engines of `--eval-mode apart` the weights that are to be evaluated.

An engine that is started again has those of --hf-checkpoint, and is given the weights once more.
One that goes away for longer, because its node is lost or it stays down, is waited for no more.
"""

import logging
from collections.abc import Callable, Sequence

import anyio

from agentrl.cluster.events import RunState
from agentrl.errors import EngineError
from agentrl.eval_weights import EvalWeights
from agentrl.serving.control import EngineControl
from agentrl.types import EngineAddress

__all__ = ["EvalEngines"]

_LOG = logging.getLogger(__name__)


class EvalEngines:
    """Engines that only evaluations use. `engines`: tells where they are now; `state`: tells which
    were started; `timeout_s`: deadline of loading; `start_timeout_s`: of the start of an engine;
    `key`: what engines want to be shown."""

    def __init__(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        state: RunState,
        *,
        timeout_s: float,
        start_timeout_s: float,
        key: str | None,
    ) -> None:
        self._engines, self._state = engines, state
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._key = key

    async def load(self, weights: EvalWeights) -> None:
        """Return when all engines that are there have these weights. Raises EngineError."""
        failed: list[EngineError] = []

        async def give(engine: EngineAddress) -> None:
            async with anyio.create_task_group() as attempt:
                attempt.start_soon(self._end_without, engine.name, attempt.cancel_scope)
                try:
                    await self._give(engine, weights)
                except EngineError as error:
                    failed.append(error)
                attempt.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for engine in self._engines():
                group.start_soon(give, engine)
        if failed:
            raise failed[0]

    async def keep(self, weights: EvalWeights) -> None:
        """Give the weights again to each engine that is started again, or was away, until
        cancelled."""
        kept: set[str] = set()
        async with anyio.create_task_group() as group:
            while True:
                for name in self._names() - kept:
                    kept.add(name)
                    group.start_soon(self._keep, name, weights)
                await self._state.wait(lambda _: bool(self._names() - kept))

    def _names(self) -> set[str]:
        return {engine.name for engine in self._engines()}

    async def _end_without(self, name: str, attempt: anyio.CancelScope) -> None:
        """End an attempt once the engine has gone away."""
        await self._state.wait(lambda _: name not in self._names())
        attempt.cancel()

    async def _keep(self, name: str, weights: EvalWeights) -> None:
        while True:
            # It may have been started again since it loaded them: this looks first.
            num_starts = self._state.starts[name]
            try:
                for engine in self._engines():
                    if engine.name == name:  # it may be on a lost node
                        await self._give(engine, weights)
            except EngineError as error:
                _LOG.warning("%s lacks the weights to evaluate: %s", name, error)
            await self._state.wait(
                lambda s, before=num_starts: s.starts[name] > before  # type: ignore[misc]
            )

    async def _give(self, engine: EngineAddress, weights: EvalWeights) -> None:
        """Load the weights once the engine answers, unless it has them."""
        label = str(weights.version)
        async with EngineControl(engine, timeout_s=self._timeout_s, key=self._key) as control:
            await control.wait_alive(self._start_timeout_s)
            if await control.weight_version() != label:
                await control.pause()
                await control.load(str(weights.folder), label)
                await control.resume()
