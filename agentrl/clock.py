"""Durations come from one injected monotonic clock; the wall clock is for names and logs only."""

import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock"]


class Clock(Protocol):
    """Seconds since an arbitrary origin; never goes back."""

    def now(self) -> float: ...


class MonotonicClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()
