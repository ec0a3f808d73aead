"""Which episodes of a run a person asked for: pure, by rows alone.

Best, worst and last look among episodes whose trajectories are kept; a group or a lease is shown
whole, with what it lacks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentrl.buffer.ids import group_id, mint_of
from agentrl.errors import StoreError

__all__ = ["Choice", "Key", "Line", "choose"]

#: Without a choice: so many of the best and of the worst episodes of the newest lease.
_EACH = 3

#: Mint number and index of an episode.
Key = tuple[int, int]


class Line(NamedTuple):
    """What a choice goes by. `stored`: it has left trajectories; `kept`: they are still there."""

    key: Key
    lease: int | None
    reward: float
    stored: bool
    kept: bool


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """At most one is set. `group` is the name of a group or of an episode in it; `lease` is a
    number, the others are counts."""

    group: str | None = None
    lease: int | None = None
    last: int | None = None
    best: int | None = None
    worst: int | None = None


def choose(choice: Choice, lines: Sequence[Line], run: Path) -> list[Key]:
    """Keys of the chosen episodes, in the order to be shown. `lines` are in order of key.

    Raises StoreError when nothing fits, and says why.
    """
    if choice.group is not None:
        mint = mint_of(choice.group.partition("/")[0])
        return _named(lines, lambda line: line.key[0] == mint, f"{run} has no group {choice.group}")
    if choice.lease is not None:
        otherwise = f"{run} has no lease {choice.lease}: {_leases(lines)}"
        return _named(lines, lambda line: line.lease == choice.lease, otherwise)
    kept = [line for line in lines if line.kept]
    if not kept:
        raise StoreError(f"{run} has no trajectory to show: {_nothing_kept(lines)}")
    if choice.last is not None:
        return [line.key for line in kept[-choice.last :]]
    if choice.best is not None:
        return [line.key for line in _ranked(kept)[: choice.best]]
    if choice.worst is not None:
        return [line.key for line in _ranked(kept)[::-1][: choice.worst]]
    newest = max(line.lease or 0 for line in kept)
    ranked = _ranked([line for line in kept if (line.lease or 0) == newest])
    return [line.key for line in [*ranked[:_EACH], *ranked[_EACH:][-_EACH:]]]


def _ranked(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (-line.reward, line.key))


def _named(lines: Sequence[Line], wanted: Callable[[Line], bool], otherwise: str) -> list[Key]:
    found = [line.key for line in lines if wanted(line)]
    if not found:
        raise StoreError(otherwise)
    return found


def _leases(lines: Sequence[Line]) -> str:
    last = max((line.lease or 0 for line in lines), default=0)
    if not last:
        return "it has no lease yet"
    return "its only lease is 1" if last == 1 else f"its leases are numbered 1 to {last}"


def _nothing_kept(lines: Sequence[Line]) -> str:
    stored = [line.key[0] for line in lines if line.stored]
    if not stored:
        return f"none of its {len(lines)} episodes is done"
    return (
        f"those of its {len(stored)} done episodes were let go after training, because"
        " --keep-trajectories was 0 or less than a segment (64 MiB), which goes as a whole; raise"
        f" it in the next run, or see by --group {group_id(max(stored))} what the ledger knows"
    )
