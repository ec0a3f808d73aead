"""`guess`: find a number; each guess is told whether it is too low or too high.

A turn is a guess: the last number in it. What says no number, or one outside the range, is told so
and costs a guess, too. The reward is 1 for a number that is found at once, falls by the same step
with each further guess, and is 0 where the guesses run out.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.envs.env import Env
from agentrl.envs.guess.games import Game, GuessSource, eval_tasks
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.envs.registry import register
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Task, TaskSource

__all__ = ["GuessEnv"]

#: A number as a guess may be written; digits that go on and on are none.
_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")


class _State(msgspec.Struct, frozen=True):
    """What a game has become: guesses made, and the range that the hints have left."""

    guesses: int
    low: int
    high: int


@register("guess")
class GuessEnv(Env):
    """One game. `--env-args` may set `max_guesses` (1..64).

    Metrics: `guesses`; `found`, 1 for a game that was won; `illegal`, guesses that were no number
    of the range; `unheeded`, those that an earlier hint had ruled out.
    """

    def __init__(self, *, max_guesses: int = 5) -> None:
        super().__init__()
        if not 1 <= max_guesses <= 64:
            raise ConfigError(f"guess: max_guesses is {max_guesses}; it must lie in 1..64")
        self._max_guesses = max_guesses
        self._game = Game(0, 0, 0)
        self._state = _State(0, 0, 0)

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        """Endless games, none of which is evaluated."""
        del args
        return GuessSource(seed)

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> dict[str, list[Task]]:
        """Games that are never trained on."""
        del args
        return {"heldout": eval_tasks()}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
        self._game = Game.from_row(task)
        self._state = _State(0, self._game.low, self._game.high)
        return [Message.user(f"Guess my number from {self._range}.")]

    async def step(self, turn: AssistantTurn) -> Step:
        guess, state = guess_in(turn.text), self._state
        is_legal = guess is not None and self._game.low <= guess <= self._game.high
        is_heeding = guess is not None and state.low <= guess <= state.high
        is_found = guess == self._game.number
        self._state = msgspec.structs.replace(state, guesses=state.guesses + 1)
        metrics = {
            "guesses": 1.0,
            "found": float(is_found),
            "illegal": float(not is_legal),
            "unheeded": float(is_legal and not is_heeding),
        }
        if is_found:
            return Step(reward=self._reward, terminated=True, metrics=metrics)
        hint = Message.user(self._hint(guess, is_legal=is_legal))
        is_last = self._state.guesses == self._max_guesses
        return Step(messages=[hint], truncated=is_last, metrics=metrics)

    def _hint(self, guess: int | None, *, is_legal: bool) -> str:
        """Tell on which side the number lies, and remember what that leaves."""
        if guess is None:
            return f"Say a number from {self._range}."
        if not is_legal:
            return f"{guess} is not from {self._range}."
        state = self._state
        if guess < self._game.number:
            self._state = msgspec.structs.replace(state, low=max(state.low, guess + 1))
            return f"{guess} is too low."
        self._state = msgspec.structs.replace(state, high=min(state.high, guess - 1))
        return f"{guess} is too high."

    @property
    def _range(self) -> str:
        return f"{self._game.low} to {self._game.high}"

    @property
    def _reward(self) -> float:
        """Of a number that the last guess has found."""
        return 1 - (self._state.guesses - 1) / self._max_guesses

    async def snapshot(self) -> bytes:
        return msgspec.json.encode(self._state)

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        await self.reset(seed=seed, task=task)
        try:
            self._state = msgspec.json.decode(state, type=_State)
        except msgspec.DecodeError as error:
            raise EnvError(f"this is no snapshot of a game: {error}") from error


def guess_in(text: str) -> int | None:
    """The last number of a turn, or None."""
    found = _NUMBER.findall(text)
    return int(found[-1]) if found else None
