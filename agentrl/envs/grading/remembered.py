"""A cache of answers: what is equal is asked once, and the oldest answer is forgotten.

    asked -> told, and remembered | failed, for each that waits | cancelled, and the next asks

Equal requests of one event loop that are made at the same time are one: the first asks, and the
others wait for what it is told.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from agentrl.errors import AgentRLError

__all__ = ["Remembered"]

V = TypeVar("V")


class _UnderWay:
    """A request that somebody makes. At its end it has an `error`, or there is an answer, or it was
    cancelled."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: AgentRLError | None = None


class Remembered:
    """The newest `most` answers by their key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: OrderedDict[bytes, Any] = OrderedDict()
        self._under_way: RunVar[dict[bytes, _UnderWay]] = RunVar("under_way")

    def clear(self) -> None:
        """Forget what was told."""
        self._answers.clear()

    async def get(self, key: bytes, ask: Callable[[], Awaitable[V]]) -> V:
        """What `key` was answered, or what `ask` is told now. Raises what it does."""
        under_way = self._under_way.get({})
        self._under_way.set(under_way)
        while key not in self._answers:
            if (other := under_way.get(key)) is None:
                await self._asked(key, ask, under_way)
                continue
            await other.ended.wait()
            if other.error is not None:
                raise type(other.error)(*other.error.args) from other.error
        self._answers.move_to_end(key)
        answer: V = self._answers[key]
        return answer

    async def _asked(
        self, key: bytes, ask: Callable[[], Awaitable[Any]], under_way: dict[bytes, _UnderWay]
    ) -> None:
        own = under_way[key] = _UnderWay()
        try:
            self._answers[key] = await ask()
        except AgentRLError as error:
            own.error = error
            raise
        finally:
            del under_way[key]
            own.ended.set()
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)
