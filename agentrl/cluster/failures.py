"""When failed groups stop a run: nothing but failures, batch after batch. Pure.

A failed group is replaced by the next one, so an Env that always raises would keep a run busy for
ever without a single iteration; so would tasks of which no prompt fits.
"""

from collections.abc import Mapping

__all__ = ["FailureStreak"]

FAILED = ("env_error", "engine_error", "poison")
_TOO_LONG = "filtered for a first prompt that does not fit"


class FailureStreak:
    """Counts groups that failed since the last iteration; `limit` of them in a row end the run."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._since = "the run began"
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def begin(self, counts: Mapping[str, int]) -> None:
        """Begin with the fates of a run that is continued: they ended no program yet."""
        self._before = self._now = _failed(counts)
        self._since = "it was continued"

    def stepped(self) -> None:
        """An iteration was made: the streak begins again."""
        self._before = self._now
        self._since = "the last one"

    def given_up(self, num_groups: int) -> None:
        """So many groups became poison with a lease that the learner does not survive: no group
        has failed, and the learner's restarts have a bound of their own."""
        self._before = self._before | {"poison": self._before.get("poison", 0) + num_groups}

    def fates(self, counts: Mapping[str, int], too_long: int = 0) -> str | None:
        """Take in the run's fates so far, and how many groups were filtered for a prompt that was
        too long since the buffer began; why the run must stop, or None."""
        self._now = _failed(counts) | {_TOO_LONG: too_long}
        return self.reason() if sum(self._streak.values()) >= self._limit else None

    def reason(self) -> str | None:
        """What has failed since the last iteration, in words; None: nothing."""
        streak = self._streak
        if not streak:
            return None
        fates = ", ".join(f"{count} {fate}" for fate, count in streak.items())
        return f"groups fail and no iteration comes of them ({fates} since {self._since})"

    @property
    def _streak(self) -> dict[str, int]:
        since = {fate: count - self._before.get(fate, 0) for fate, count in self._now.items()}
        return {fate: count for fate, count in since.items() if count > 0}


def _failed(counts: Mapping[str, int]) -> dict[str, int]:
    return {fate: counts[fate] for fate in FAILED if fate in counts}
