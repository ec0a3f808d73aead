"""`Share`: the time that a check has for one promise, and what it left out when that was over.

    seconds of the check that are left / promises that are left -> seconds of this promise

What is begun in time is finished, under limits of its own; what is not begun is named in a note,
never taken for kept. A promise that is given no time at all is not tried.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["CHECK_S", "Share", "shares"]

#: Seconds that a check has, unless its user says otherwise.
CHECK_S = 300.0
#: Things left out that a note names.
_MAX_NAMED = 3

T = TypeVar("T")


class Share:
    """`seconds` from now on, of a check that has `limit_s` in all."""

    def __init__(
        self, seconds: float, limit_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._end = now() + seconds
        self._limit_s = limit_s
        self._now = now
        self._notes: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self._now() >= self._end

    @property
    def note(self) -> str | None:
        """What was left out, and why; None: nothing was."""
        return "; ".join(self._notes) or None

    def remark(self, what: str) -> None:
        """Have it in the note."""
        self._notes.append(what)

    def leave_out(self, what: str) -> None:
        """Have it in the note, with the reason that its time was over."""
        more = f"--limit-s gives the check more than {self._limit_s:g} s"
        self.remark(f"{what}: its time was over ({more})")

    def within(self, items: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        """The items, each with its name, that are begun in time."""
        rest = list(items)
        total = len(rest)
        while rest and not self.is_over:
            yield rest.pop(0)
        if rest:
            names = ", ".join(name for name, _ in rest[:_MAX_NAMED])
            more = ", ..." if len(rest) > _MAX_NAMED else ""
            self.leave_out(f"left out {len(rest)} of {total}, {names}{more}")


def shares(
    num_promises: int, limit_s: float, now: Callable[[], float] = time.monotonic
) -> Iterator[Share]:
    """A share for each promise, in turn: what one does not need is left to those after it."""
    end = now() + limit_s
    for number in range(num_promises):
        yield Share(max(0.0, end - now()) / (num_promises - number), limit_s, now)
