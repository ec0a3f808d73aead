"""Work of a rank in a thread of its own, and how ranks wait for each other's.

A collective has a deadline (`--distributed-timeout-minutes`) that long work on one rank would miss.
So ranks wait in turns: every few seconds they tell each other whether they have finished.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

from agentrl.learner.agreement import together

__all__ = ["in_a_thread", "of_all_ranks"]

#: Seconds that a rank works on before it tells the others that it has not finished.
TURN_S = 5.0

T = TypeVar("T")


def in_a_thread(name: str, call: Callable[[], T]) -> "Future[T]":
    """What `call` returns or raises, once it has; a process that ends does not wait for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future


def of_all_ranks(
    own: "Future[Any]", all_gather: Callable[[Any], list[Any]], turn_s: float = TURN_S
) -> list[Any]:
    """What the work of each rank returned, as builtins, or the error of a rank, on every rank.
    Collective, and no single collective of it waits for the work."""

    def look() -> list[Any]:
        is_done = bool(wait([own], timeout=turn_s).done)
        return [is_done, own.result() if is_done else None]

    while True:
        looks = together(look, all_gather)
        if all(is_done for is_done, _ in looks):
            return [answer for _, answer in looks]
