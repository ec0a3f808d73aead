"""`SourceThread`: the thread in which a user's class is asked for tasks.

    asked -> under way -> came back: told what it returned or raised
                       -> given up: told an error, and what comes back later is told nobody

All calls are made by one thread, because libraries bind things to theirs (a connection of sqlite3).
One that does not come back holds up neither who has given up waiting for it nor the end of the
program.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple

__all__ = ["SourceThread"]


class _Told(NamedTuple):
    """What came of a call: a future takes no StopIteration as its exception."""

    found: Any
    error: BaseException | None = None


class SourceThread:
    """The thread, which ends with the process. One call is under way at a time."""

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[_Told]]] = (
            queue.SimpleQueue()
        )
        self._name = name
        self._under_way: Future[_Told] | None = None
        self._is_begun = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns. Raises what it raises, or what it was given up with."""
        if not self._is_begun:
            self._is_begun = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        future: Future[_Told] = Future()
        self._asked.put((call, future))
        told = await asyncio.wrap_future(future)
        if told.error is not None:
            raise told.error
        return told.found

    def give_up(self, error: BaseException) -> None:
        """Have `error` raised where the call under way is waited for. From any thread."""
        if (future := self._under_way) is not None:
            _tell(future, _Told(None, error))

    def _work(self) -> None:
        while True:
            call, self._under_way = self._asked.get()
            try:
                told = _Told(call())
            except BaseException as error:  # whatever it is, it is the user's
                told = _Told(None, error)
            _tell(self._under_way, told)
            del call, told


def _tell(future: "Future[_Told]", told: _Told) -> None:
    with suppress(InvalidStateError):  # it was given up, or nobody waits any more
        future.set_result(told)
