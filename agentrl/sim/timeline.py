"""Virtual time: actions happen in the order of their moments, equal moments in order of planning.

Nothing here sleeps. A run in which nothing is planned any more, and which has not stopped, is a
deadlock and says so.
"""

import heapq
from collections.abc import Callable

__all__ = ["Timeline", "Timer"]

Action = Callable[[], None]


class Timer:
    """A planned action; `when` is its moment in seconds."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Action) -> None:
        self.when = when
        self.action: Action | None = action

    def cancel(self) -> None:
        """It will not happen. Nothing, when it has happened already."""
        self.action = None


class Timeline:
    """`now` is in seconds since the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._planned = 0
        self._stopped = False

    def after(self, seconds: float, action: Action) -> Timer:
        """Plan `action` in so many seconds (>= 0)."""
        timer = Timer(self.now + seconds, action)
        self._planned += 1
        heapq.heappush(self._heap, (timer.when, self._planned, timer))
        return timer

    def stop(self) -> None:
        """Let `run` return after the action in progress."""
        self._stopped = True

    def run(self) -> None:
        """Let time pass until `stop`; raises RuntimeError when nothing is left to happen."""
        heap, pop = self._heap, heapq.heappop
        self._stopped = False
        while not self._stopped:
            if not heap:
                raise RuntimeError(f"deadlock at {self.now:.1f} s: nothing is planned any more")
            when, _, timer = pop(heap)
            if timer.action is not None:
                self.now = when
                action, timer.action = timer.action, None
                action()
