"""The default job's Env with a slow tool: a search takes as long as a long-tailed law says.

    seconds of a search = min(5, median * exp(z)),   z ~ N(0, 1)

A lognormal with sigma 1, cut off at 5 s. With the median of 0.5 s that is the default its mean is
0.8 s, one search in ten takes longer than 1.8 s, and one in a hundred all of the 5 s. z is a
function of the episode's seed and the number of the search in it, so runs with the same seeds draw
from the same numbers, whatever else differs. The wait holds no processor and no engine, as that for
a remote service would not; the search itself is the real one.

`--env benchmarks/slow_search.py:SlowSearchEnv`, and `--env-args '{"median_s": 0}'` for no wait.
"""

import math
import random
from typing import Any

import anyio

from agentrl.envs.messages import Message
from agentrl.envs.search_r1.env import SearchR1Env
from agentrl.errors import ConfigError

__all__ = ["LIMIT_S", "MEDIAN_S", "SlowSearchEnv", "latency_s"]

MEDIAN_S, SIGMA, LIMIT_S = 0.5, 1.0, 5.0


def latency_s(seed: int, search: int, median_s: float = MEDIAN_S) -> float:
    """Seconds (0..LIMIT_S) that search number `search` of the episode with `seed` waits."""
    z = random.Random(f"{seed}/{search}").gauss(0.0, 1.0)
    return min(LIMIT_S, median_s * math.exp(SIGMA * z))


class SlowSearchEnv(SearchR1Env):
    """`search-r1-local`, each search after a wait. `--env-args` may set `median_s` (seconds, 0 for
    none) and `topk`."""

    def __init__(self, *, topk: int = 3, median_s: float = MEDIAN_S) -> None:
        super().__init__(topk=topk)
        if not 0 <= median_s < math.inf:
            raise ConfigError(f"SlowSearchEnv: median_s is {median_s}; it must be 0 or more")
        self._median_s = median_s
        self._seed = 0
        self._num_searches = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self._seed, self._num_searches = seed, 0
        return await super().reset(seed=seed, task=task)

    async def retrieve(self, query: str) -> list[str]:
        seconds = latency_s(self._seed, self._num_searches, self._median_s)
        self._num_searches += 1
        await anyio.sleep(seconds)
        return await super().retrieve(query)
