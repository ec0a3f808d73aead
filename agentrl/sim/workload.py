"""What episodes are made of: how many tokens each turn samples, how long each tool takes.

    tokens of an episode    lognormal; `task_sigma` is the part of its spread that the episodes of a
                            group share, because a hard task is hard for all of them
    turns                   1, or geometric with mean `turns`, at most three times the mean
    one tool call           lognormal seconds, after every turn but the last

Tokens and turns of recorded episodes take the place of the first two laws. A group is a pure
function of seed, position in the task source and size: the same for every schedule that plays it,
and the same again when an episode is retried.
"""

import itertools
import math
import random

import msgspec

__all__ = ["Lognormal", "Plan", "Shapes", "Workload"]

#: Tokens and turns of episodes.
Shapes = tuple[tuple[int, int], ...]

MIN_TOKENS = 8
MAX_TURNS = 3


class Lognormal(msgspec.Struct, frozen=True):
    """A law by its median and the standard deviation of its logarithm."""

    median: float
    sigma: float

    def draw(self, rng: random.Random, shift: float = 0.0) -> float:
        """One value; `shift` is added to its logarithm."""
        return self.median * math.exp(shift + self.sigma * rng.gauss(0.0, 1.0))


class Plan(msgspec.Struct, frozen=True):
    """One episode: tokens of each turn, and seconds of the tool call after each but the last."""

    turns: tuple[int, ...]
    tools: tuple[float, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(self.turns)

    def alone_s(self, token_s: float) -> float:
        """Seconds it takes with nobody else about, at `token_s` seconds a token."""
        return self.num_tokens * token_s + sum(self.tools)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Laws of a workload; `max_tokens` bounds an episode. `played`: groups of recorded episodes,
    each by its tokens and turns; a group is drawn from one of them."""

    tokens: Lognormal = Lognormal(1500.0, 0.7)
    task_sigma: float = 0.7
    max_tokens: int = 16_000
    turns: int = 1
    tool_s: Lognormal = Lognormal(2.0, 1.2)
    played: tuple[Shapes, ...] = ()

    def group(self, seed: int, position: int, size: int) -> tuple[Plan, ...]:
        """The episodes of the group at `position`."""
        rng = random.Random(f"{seed}/{position}")
        if self.played:
            shapes = rng.choice(self.played)
            return tuple(self._plan(rng, *rng.choice(shapes)) for _ in range(size))
        difficulty = rng.gauss(0.0, self.task_sigma)
        return tuple(self._episode(rng, difficulty) for _ in range(size))

    def _episode(self, rng: random.Random, difficulty: float) -> Plan:
        drawn = self.tokens.draw(rng, difficulty)
        turns = 1
        if self.turns > 1:
            turns += min(MAX_TURNS * self.turns - 1, int(rng.expovariate(1 / self.turns)))
        total = max(MIN_TOKENS, min(self.max_tokens, round(drawn)))
        return self._plan(rng, total, turns)

    def _plan(self, rng: random.Random, tokens: int, turns: int) -> Plan:
        """An episode of equal turns, each of one token at least."""
        total = max(tokens, turns)
        ends = [total * turn // turns for turn in range(turns + 1)]
        return Plan(
            turns=tuple(end - start for start, end in itertools.pairwise(ends)),
            tools=tuple(self.tool_s.draw(rng) for _ in range(turns - 1)),
        )
