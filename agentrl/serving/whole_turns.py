"""`--no-partial-rollout`: a turn that a push has met is sampled again, so that it has one version.

    asked -> reply of one version -> taken
      ^  |
      |  +-> new weights, or a reply of several versions -> given up; twice, then taken as it is
      +-------------------------------------------------------+

The word that new weights are there saves what is left of such a turn; where it is lost, or too
late, the reply itself tells. Of a turn taken as it is the learner trains the newest version's
tokens alone. Episode and tools notice nothing.
"""

from collections.abc import Awaitable, Callable

import anyio
import msgspec

from agentrl.bounds import RESAMPLES
from agentrl.types import Generation

__all__ = ["WholeTurns"]


class WholeTurns:
    """The turns of one client that are on an engine now."""

    def __init__(self) -> None:
        self._in_flight: set[anyio.CancelScope] = set()

    async def take(self, sample: Callable[[], Awaitable[Generation]]) -> Generation:
        """A turn that `sample` asks for, once or again; `num_resamples` says how often it was given
        up. Raises what `sample` raises."""
        for num_resamples in range(RESAMPLES):
            generation = await self._try(sample)
            if generation is not None and len(set(generation.versions)) <= 1:
                return msgspec.structs.replace(generation, num_resamples=num_resamples)
        return msgspec.structs.replace(await sample(), num_resamples=RESAMPLES)

    def new_weights(self) -> None:
        """Engines have been given new weights: give up what was asked for before."""
        for scope in self._in_flight:
            scope.cancel()

    async def _try(self, sample: Callable[[], Awaitable[Generation]]) -> Generation | None:
        """The reply, or None when new weights came first."""
        scope = anyio.CancelScope()
        self._in_flight.add(scope)
        try:
            with scope:
                return await sample()
        finally:
            self._in_flight.discard(scope)
        return None
