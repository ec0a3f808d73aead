"""How long a coroutine holds the event loop between two awaits."""

import time
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Held"]

T = TypeVar("T")


class Held(Generic[T]):
    """`await Held(coroutine)`, once; then `longest_s`, in seconds of the wall."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.longest_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                if thrown is None:
                    waits_for = self._coroutine.send(sent)
                else:
                    waits_for = self._coroutine.throw(thrown)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
            sent = thrown = None
            try:
                sent = yield waits_for
            except BaseException as error:
                thrown = error
