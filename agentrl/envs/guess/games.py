"""The games of `guess`: some 6 to 10 numbers that differ in their last digit, one to be found.

A game belongs to evaluation or to training by a hash of itself, so no evaluated game is ever
trained on. Training game i is a function of (seed, i) alone, so the cursor is the whole state;
evaluation games are a fixed list without repeats.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from agentrl.envs.made import MadeSource
from agentrl.errors import EnvError
from agentrl.types import Task

__all__ = ["EVAL_GAMES", "Game", "GuessSource", "draw", "eval_tasks"]

#: What stands before the last digit.
FIRST_TEN, LAST_TEN = 10, 99
MIN_SPAN, MAX_SPAN = 6, 10
#: One game in so many is for evaluation.
EVAL_SHARE = 8
#: Games of the one evaluation set.
EVAL_GAMES = 256


class Game(msgspec.Struct, frozen=True):
    """`number` is to be found among `low` .. `high`, both included."""

    low: int
    high: int
    number: int

    @property
    def is_for_evaluation(self) -> bool:
        """Whether this game is never trained on."""
        key = f"guess/{self.low}/{self.high}/{self.number}"
        return hashlib.sha256(key.encode()).digest()[0] % EVAL_SHARE == 0

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Game":
        """The game of a task; EnvError for a row that is none."""
        try:
            game = msgspec.convert(row, cls)
        except msgspec.ValidationError as error:
            raise EnvError(f"the task {row!r:.100} is no game: {error}") from error
        if not game.low <= game.number <= game.high:
            raise EnvError(f"the number of the task {row!r:.100} does not lie in its range")
        return game


def draw(rng: random.Random, *, evaluation: bool) -> Game:
    """A game of the part that is asked for."""
    while True:
        span = rng.randint(MIN_SPAN, MAX_SPAN)
        low = 10 * rng.randint(FIRST_TEN, LAST_TEN) + rng.randint(0, 10 - span)
        game = Game(low, low + span - 1, rng.randrange(low, low + span))
        if game.is_for_evaluation is evaluation:
            return game


class GuessSource(MadeSource):
    """Training games."""

    def task(self, index: int) -> Task:
        """See `MadeSource`."""
        game = draw(random.Random(f"guess/{self.seed}/{index}"), evaluation=False)
        return Task(id=f"guess/train/{self.seed}/{index}", row=msgspec.structs.asdict(game))


def eval_tasks() -> list[Task]:
    """The games that evaluations play; none of them is trained on."""
    games: dict[Game, None] = {}
    for game in _forever(random.Random("guess/eval")):
        games[game] = None
        if len(games) == EVAL_GAMES:
            break
    return [
        Task(id=f"guess/heldout/{index}", row=msgspec.structs.asdict(game))
        for index, game in enumerate(games)
    ]


def _forever(rng: random.Random) -> Iterator[Game]:
    while True:
        yield draw(rng, evaluation=True)
