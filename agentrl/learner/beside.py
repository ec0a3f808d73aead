"""Work of a rank in a thread of its own, and how ranks wait for each other's.

A collective has a deadline (`--distributed-timeout-minutes`) that long work on one rank would miss.
So ranks wait in turns: every few seconds they tell each other whether they have finished.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

from agentrl.learner.collective_errors import Rank, by_source, together

__all__ = ["TURN_S", "by_source_in_turns", "in_a_thread", "of_all_ranks"]

#: Seconds that a rank works on before it tells the others that it has not finished.
TURN_S = 5.0

T = TypeVar("T")


def in_a_thread(name: str, call: Callable[[], T]) -> "Future[T]":
    """What `call` returns or raises, once it has; a process that ends does not wait for it. The
    call has the caller's GPU as its own."""
    import torch  # late: those who only look for a checkpoint need none

    future: Future[T] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future


def by_source_in_turns(rank: Rank, action: Callable[[], object]) -> None:
    """Returns when `action`, which the source rank does in a thread, has, or raises its error, on
    every rank. Collective, and no single collective of it waits for the action."""
    own = in_a_thread("source", action) if rank.is_source else None

    def look() -> bool:
        assert own is not None
        is_done = bool(wait([own], timeout=TURN_S).done)
        if is_done:
            own.result()
        return is_done

    while not by_source(rank, look, bool):
        pass


def of_all_ranks(
    own: "Future[Any]", all_gather: Callable[[Any], list[Any]], turn_s: float | None = None
) -> list[Any]:
    """What the work of each rank returned, as builtins, or the error of a rank, on every rank, when
    all have ended. Collective, and no single collective of it waits for the work. `turn_s`: seconds
    of a turn (None: TURN_S)."""

    def look() -> bool:
        return bool(wait([own], timeout=TURN_S if turn_s is None else turn_s).done)

    while not all(together(look, all_gather)):
        pass
    return together(own.result, all_gather)
