"""`Walks`: the tensors of a push that waits for engines, while the learner's ranks wait for it.

    thread of the push    asks for one tensor after the other, and for the first again and again
    thread of the backend, on the source rank
                          gathers them with the other ranks, and gives each when it is asked for

Gathering is collective, and a collective has a deadline (`--distributed-timeout-minutes`) that a
push may miss: engines have deadlines of their own. So no rank stands in a collective until the push
asks. Before a walk the source tells the others every few seconds that none begins; in a walk of
which the push takes no tensor for `patience_s` the ranks gather the rest, which nobody is given. If
the push asks later, another walk gives it what is left: weights stay as they are meanwhile.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from agentrl.learner import beside
from agentrl.learner.collective_errors import Rank, by_source

__all__ = ["GathersTensors", "Walks", "follow"]

T = TypeVar("T")

#: What the source tells the others.
_WALK, _WAIT, _DONE = "walk", "wait", "done"
#: In place of the number of a tensor: the push has ended.
_OVER = -1


class GathersTensors(Rank, Protocol):
    """What is needed of a `TrainBackend` here."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]: ...


class Walks(Generic[T]):
    """On the source rank: does `push`, which may iterate its argument as often as it likes, in a
    thread of its own."""

    def __init__(
        self,
        backend: GathersTensors,
        push: Callable[["Walks[T]"], T],
        patience_s: float,
    ) -> None:
        self._backend = backend
        self._patience_s = patience_s
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._given: SimpleQueue[tuple[str, Tensor] | BaseException | None] = SimpleQueue()
        #: The number of the tensor that the push waits for, or _OVER; None: it does something else.
        self._due: int | None = None
        self._work = beside.in_a_thread("push", partial(push, self))
        self._work.add_done_callback(lambda _: self._asked.put(_OVER))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full tensor, from the first one. In the thread of the push."""
        for number in itertools.count():
            self._asked.put(number)
            given = self._given.get()
            if isinstance(given, BaseException):
                raise given
            if given is None:
                return
            yield given

    def lead(self) -> T:
        """What the push returns, or its error, on every rank: the others `follow`. Collective."""
        try:
            while (word := by_source(self._backend, self._word, str)) != _DONE:
                if word == _WALK:
                    self._walk()
        except BaseException as error:
            self._given.put(error)  # if it still waits for a tensor
            raise
        return self._work.result()

    def _word(self) -> str:
        self._look(beside.TURN_S)
        if self._due is None:
            return _WAIT
        if self._due == _OVER:
            self._work.result()
            return _DONE
        return _WALK

    def _walk(self) -> None:
        """Gather all tensors, and give those that the push asks for on the way."""
        length = 0
        for number, named in enumerate(self._backend.hf_tensors()):
            self._look(0.0)
            if self._due == number:
                self._due = None
                self._given.put(named)
                self._look(self._patience_s)
            length = number + 1
        if self._due == length:
            self._due = None
            self._given.put(None)

    def _look(self, timeout_s: float) -> None:
        """Hear which tensor the push asks for next, within so long."""
        if self._due is None:
            with suppress(Empty):
                self._due = self._asked.get(timeout=timeout_s)


def follow(backend: GathersTensors) -> None:
    """On the other ranks: wait and gather as the source does, and raise what its push has raised.
    Collective."""
    while (word := by_source(backend, lambda: "", str)) != _DONE:
        if word == _WALK:
            for _ in backend.hf_tensors():
                pass
