"""`FailedLeases`: in which leases the learner ended by itself, and how often, in words. Pure."""

from collections.abc import Mapping
from typing import Any

from agentrl.telemetry.dropped import one_line

__all__ = ["FailedLeases", "given_up"]

#: Groups that are named one by one.
_SHOWN = 8
_TASK_CHARS = 80


class FailedLeases:
    """What this program has heard, up to the next step. A lease that was made again is another."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[int, tuple[str, ...]], int] = {}

    def take(self, data: Mapping[str, Any]) -> None:
        """Take in an event `lease_failed`."""
        self._deaths[data["number"], tuple(data["groups"])] = data["deaths"]

    def stepped(self, number: int) -> None:
        """Lease `number` was stepped: whatever it was, it is over."""
        self._deaths = {key: n for key, n in self._deaths.items() if key[0] != number}

    def words(self) -> str:
        """`the learner ended 3 times in lease 9 (groups ...)`, for all of them; empty: none."""
        return " and ".join(
            f"the learner ended {_times(deaths)} in lease {number} (groups {_listed(groups)})"
            for (number, groups), deaths in self._deaths.items()
        )


def given_up(data: Mapping[str, Any]) -> str:
    """What a person is told of a lease that is given up."""
    pairs = zip(data["groups"], data["tasks"], strict=True)
    named = [f"{group} of task {one_line(task, _TASK_CHARS)}" for group, task in pairs]
    return (
        f"lease {data['number']} ended the learner {_times(data['deaths'])}: its groups are given "
        f"up as poison, and it is made of others. They are {_listed(named)}"
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
