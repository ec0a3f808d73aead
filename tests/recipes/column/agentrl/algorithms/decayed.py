"""An optional column in one file: its declaration, its writer, and the estimator that reads it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import TERMS, Algorithm
from agentrl.algorithms.rows import Row
from agentrl.columns import Column
from agentrl.config.run import RunConfig
from agentrl.types import Generation, SamplingParams, TurnClient

__all__ = ["DECAY", "PLACES", "Decayed", "Placing"]

#: The place of a sampled token in its turn, from 0 on.
PLACES = Column("places", "<u2")
#: Of the advantage, from one token of a turn to the next.
DECAY = 0.99


class Placing(TurnClient):
    """A `TurnClient` that has another one sample, and says where in its turn each token stands."""

    def __init__(self, client: TurnClient) -> None:
        self._client = client

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        """See `TurnClient`."""
        found = await self._client.generate(
            input_ids, sampling, routing_key=routing_key, priority=priority
        )
        places = np.arange(len(found.output_ids), dtype=np.uint16)
        return msgspec.structs.replace(found, columns={**found.columns, PLACES: places})


class Decayed(Algorithm):
    """The reward less the mean of its group, times `DECAY` for each earlier token of the turn."""

    reads = TERMS | {"eps_clip_c"}

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        columns = (*self.needs.columns, PLACES)
        self.needs = msgspec.structs.replace(self.needs, columns=columns)

    def values(self, rewards: Sequence[float]) -> Sequence[float]:
        mean = sum(rewards) / max(1, len(rewards))
        return [reward - mean for reward in rewards]

    def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
        found_L = super().token_advantages(row)
        found_L *= np.power(DECAY, row.columns[PLACES.name])
        return found_L
