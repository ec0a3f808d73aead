"""`GivenBack`: the groups of a worker that a rollout function has given back, with their samples as
it gave them, until they are taken again.

They are taken before others, the oldest first. With `--buffer-filter-path` that function chooses
among them. New groups make up what is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.actors.batches.tickets import Group
from agentrl.envs.buffer_filter import BufferFilter, chosen

__all__ = ["GivenBack", "NextGroups"]


@dataclass(frozen=True)
class NextGroups:
    """`taken`: groups to play now; `dropped`: those that nobody plays; `passed`: those that wait
    until another ask."""

    taken: list[Group]
    dropped: list[Group] = field(default_factory=list)
    passed: list[Group] = field(default_factory=list)


class GivenBack:
    """`function`: that of the flag, if there is one."""

    def __init__(self, function: BufferFilter | None) -> None:
        self._function = function
        self._samples: dict[Group, list[Any]] = {}

    def put(self, group: Group, samples: list[Any]) -> None:
        """`group` waits again."""
        self._samples[group] = samples

    def among(self, waiting: Sequence[Group]) -> dict[Group, list[Any]]:
        """Those of `waiting` that were given back, the oldest first; others are forgotten."""
        self._samples = {group: s for group, s in self._samples.items() if group in waiting}
        return dict(self._samples)

    def choose(
        self, args: Any, ready: Sequence[Group], back: dict[Group, list[Any]], num: int
    ) -> NextGroups:
        """At most `num` of `ready`. Calls the function, which takes the time that it takes, so
        nobody may hold a lock. Raises what `chosen` raises."""
        mine = [group for group in back if group in ready]
        new = [group for group in ready if group not in back]
        if self._function is None or not mine:
            return NextGroups([*mine, *new][:num])
        places, out = chosen(self._function, args, [back[group] for group in mine], num)
        taken, dropped = ([mine[place] for place in each] for each in (places, out))
        passed = [group for group in mine if group not in taken and group not in dropped]
        return NextGroups([*taken, *new][:num], dropped, passed)
