"""Calls of Ray by threads, and its end: a call after `ray.shutdown` can end the whole program,
with exit code 1 and without a word from Python."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agentrl.errors import InfrastructureError

__all__ = ["RayCalls", "calls_ray"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RayCalls:
    """Counts the calls of Ray that are in progress, of all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num = 0
        self._is_over = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_over:
                raise InfrastructureError("Ray is shut down: no call is possible any more")
            self._num += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._num -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Refuse calls from now on: they raise InfrastructureError."""
        with self._changed:
            self._is_over = True

    def wait(self, timeout_s: float = 15.0) -> bool:
        """Wait until no call goes on, for at most `timeout_s` seconds; whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num == 0, timeout_s)


class _CallsRay(Protocol):
    ray_calls: RayCalls


_S = TypeVar("_S", bound=_CallsRay)


def calls_ray(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Count a call of this method until it returns or raises."""

    @wraps(method)
    def counted(its: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with its.ray_calls:
            return method(its, *args, **kwargs)

    return counted
