"""Threads that ask Ray, and its end: a question after `ray.shutdown` would end the whole program,
with exit code 1 and without a word from Python."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agentrl.errors import InfrastructureError

__all__ = ["Asking", "asks"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Asking:
    """Counts the questions that are in progress, of all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num = 0
        self._is_over = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_over:
                raise InfrastructureError("Ray is being left: nothing more can be asked")
            self._num += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._num -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """From now on questions are refused: InfrastructureError."""
        with self._changed:
            self._is_over = True

    def wait(self, timeout_s: float = 15.0) -> bool:
        """Whether every question has its answer, at the latest after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num == 0, timeout_s)


class _Asks(Protocol):
    asking: Asking


_S = TypeVar("_S", bound=_Asks)


def asks(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Marks a method that asks Ray: it counts as a question until it returns."""

    @wraps(method)
    def asked(its: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with its.asking:
            return method(its, *args, **kwargs)

    return asked
