"""What has failed since the last iteration, in words. Pure.

A failed group is replaced by the next one, so an Env that always raises would keep a run busy for
ever without a single iteration; so would tasks of which no prompt fits. `FailureStreak` counts such
groups; `FailedLeases` knows in which leases the learner ended, and how often by itself.
"""

from collections.abc import Mapping
from typing import Any

from agentrl.telemetry.dropped import one_line

__all__ = ["FailedLeases", "FailureStreak", "given_up"]

FAILED = ("env_error", "engine_error", "poison")
#: Groups that are named one by one, and characters of a task's name.
_SHOWN, _TASK_CHARS = 8, 80
_TOO_LONG = "filtered for a first prompt that does not fit"


class FailureStreak:
    """Counts groups that failed since the last iteration."""

    def __init__(self) -> None:
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

    def fates(self, counts: Mapping[str, int], too_long: int = 0) -> None:
        """Take in the run's fates so far, and how many groups were filtered for a prompt that was
        too long since the buffer began."""
        self._now = _failed(counts) | {_TOO_LONG: too_long}

    def words(self, at_least: int = 1) -> str:
        """What has failed since the last iteration; empty: fewer than `at_least` groups."""
        since = {fate: count - self._before.get(fate, 0) for fate, count in self._now.items()}
        streak = {fate: count for fate, count in since.items() if count > 0}
        if sum(streak.values()) < at_least:
            return ""
        fates = ", ".join(f"{count} {fate}" for fate, count in streak.items())
        return f"groups keep failing, so no iteration is made ({fates} since {self._since})"


def _failed(counts: Mapping[str, int]) -> dict[str, int]:
    return {fate: counts[fate] for fate in FAILED if fate in counts}


class FailedLeases:
    """What this program has heard, up to the next step. A lease that was made again is another."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[int, tuple[str, ...]], int] = {}

    def take(self, data: Mapping[str, Any]) -> None:
        """Take in an event `lease_failed`."""
        self._deaths[_key(data)] = data["deaths"]

    def left(self, data: Mapping[str, Any]) -> None:
        """Take in an event `lease_left`: the learner ended there, and it does not count."""
        self._deaths.setdefault(_key(data), 0)

    def stepped(self, number: int) -> None:
        """Lease `number` was stepped: whatever it was, it is over."""
        self._deaths = {key: n for key, n in self._deaths.items() if key[0] != number}

    def words(self) -> str:
        """`the learner ended 3 times in lease 9 (groups 00000007 of task t7, ...)`, for all of
        them; empty: none."""
        return " and ".join(
            f"the learner ended in lease {number} (groups {_listed(groups)}), which may not be why"
            if deaths == 0
            else f"the learner ended {_times(deaths)} in lease {number} (groups {_listed(groups)})"
            for (number, groups), deaths in self._deaths.items()
        )


def given_up(data: Mapping[str, Any]) -> str:
    """What a person is told of a lease that is given up."""
    number, groups = _key(data)
    return (
        f"lease {number} ended the learner {_times(data['deaths'])}: its groups are given "
        f"up as poison, and it is made of others. They are {_listed(groups)}"
    )


def _key(data: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """The number of a lease, and its groups with their tasks."""
    pairs = zip(data["groups"], data["tasks"], strict=True)
    named = (f"{group} of task {one_line(task, _TASK_CHARS)}" for group, task in pairs)
    return data["number"], tuple(named)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
