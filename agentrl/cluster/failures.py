"""When failed groups stop a run: nothing but failures, batch after batch. Pure.

A failed group is replaced by the next one, so an Env that always raises would keep a run busy for
ever without a single iteration.
"""

from collections.abc import Mapping

__all__ = ["FailureStreak"]

FAILED = ("env_error", "engine_error", "poison")


class FailureStreak:
    """Counts groups that failed since the last iteration; `limit` of them in a row end the run."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at_step = 0
        self._failed = 0

    def begin(self, counts: Mapping[str, int]) -> None:
        """Begin with the fates of a run that is continued: they ended no program yet."""
        self._at_step = self._failed = _failed(counts)

    def stepped(self) -> None:
        """An iteration was made: the streak begins again."""
        self._at_step = self._failed

    def fates(self, counts: Mapping[str, int]) -> str | None:
        """Take in the run's fates so far; why the run must stop, or None."""
        self._failed = _failed(counts)
        streak = self._failed - self._at_step
        if streak < self._limit:
            return None
        return f"{streak} groups failed since the last iteration ({self.reason(counts)} in all)"

    @staticmethod
    def reason(counts: Mapping[str, int]) -> str:
        """The failed groups by fate, or nothing."""
        return ", ".join(f"{counts[fate]} {fate}" for fate in FAILED if counts.get(fate))


def _failed(counts: Mapping[str, int]) -> int:
    return sum(counts.get(fate, 0) for fate in FAILED)
