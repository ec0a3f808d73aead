"""Which episodes of a run a person asked for: pure, by rows alone.

Best, worst and last look among episodes whose trajectories are kept, but for failed ones, which
left none; a group or a lease is shown whole, with what it lacks. `--failed` and `--task` leave out
the others.

Refused: a group, lease or task that the run does not have, and conversations that were let go. That
no episode fits, or that none is done yet, is an answer and no error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentrl.buffer.ids import group_id, mint_of
from agentrl.errors import StoreError
from agentrl.nearest import near

__all__ = ["Choice", "Key", "Line", "choose"]

#: Without a choice: so many of the best and of the worst episodes of the newest lease.
_EACH = 3

#: Mint number and index of an episode.
Key = tuple[int, int]


class Line(NamedTuple):
    """What a choice goes by. `stored`: it has left trajectories; `kept`: they are still there.
    `failed`: it ended in another way than done, or was done in vain, because its group failed.
    `reward`: None where there is none, which ranks below every reward."""

    key: Key
    lease: int | None
    reward: float | None
    stored: bool
    kept: bool
    task: str = ""
    failed: bool = False


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """At most one of the first five is set. `group` is the name of a group or of an episode in it;
    `lease` is a number, the others are counts. `failed` and `task` narrow any of them. `all`:
    without one of the five, every episode, kept or not."""

    group: str | None = None
    lease: int | None = None
    last: int | None = None
    best: int | None = None
    worst: int | None = None
    failed: bool = False
    task: str | None = None
    all: bool = False


def choose(choice: Choice, lines: Sequence[Line], run: Path) -> list[Key]:
    """Keys of the chosen episodes, in the order to be shown; none where no episode fits. `lines`
    are in order of key.

    Raises StoreError when there is no such group, lease or task, or when the trajectories to choose
    from were let go.
    """
    whole, lines = lines, _narrowed(choice, lines, run)
    if choice.group is not None:
        mint = mint_of(choice.group.partition("/")[0])
        if mint not in {line.key[0] for line in whole}:
            raise StoreError(f"{run} has no group {choice.group}")
        return [line.key for line in lines if line.key[0] == mint]
    if choice.lease is not None:
        if choice.lease not in {line.lease for line in whole}:
            raise StoreError(f"{run} has no lease {choice.lease}: {_leases(whole)}")
        return [line.key for line in lines if line.lease == choice.lease]
    is_counted = (choice.last, choice.best, choice.worst) != (None, None, None)
    if not is_counted and (choice.failed or choice.task is not None or choice.all):
        return [line.key for line in lines]
    kept = [line for line in lines if line.kept or choice.failed]
    if not kept and (stored := [line.key[0] for line in lines if line.stored]):
        raise StoreError(f"{run} has no trajectory to show: {_let_go(stored)}")
    return [line.key for line in _counted(choice, kept)]


def _counted(choice: Choice, kept: Sequence[Line]) -> Sequence[Line]:
    if choice.last is not None:
        return kept[-choice.last :]
    if choice.best is not None:
        return _ranked(kept)[: choice.best]
    if choice.worst is not None:
        return _ranked(kept)[::-1][: choice.worst]
    newest = max((line.lease or 0 for line in kept), default=0)
    ranked = _ranked([line for line in kept if (line.lease or 0) == newest])
    return [*ranked[:_EACH], *ranked[_EACH:][-_EACH:]]


def _narrowed(choice: Choice, lines: Sequence[Line], run: Path) -> Sequence[Line]:
    if choice.task is not None:
        ids = dict.fromkeys(line.task for line in lines)
        lines = [line for line in lines if line.task == choice.task]
        if not lines:
            close = near(choice.task, ids) or list(ids)[-3:]
            known = f"it has {', '.join(close)}" if close else "it has no episode yet"
            raise StoreError(f"{run} has no episode of task {choice.task}; {known}")
    if choice.failed:
        lines = [line for line in lines if line.failed]
    return lines


def _ranked(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (line.reward is None, -(line.reward or 0.0), line.key))


def _leases(lines: Sequence[Line]) -> str:
    last = max((line.lease or 0 for line in lines), default=0)
    if not last:
        return "it has no lease yet"
    return "its only lease is 1" if last == 1 else f"its leases are numbered 1 to {last}"


def _let_go(stored: Sequence[int]) -> str:
    return (
        f"those of its {len(stored)} done episodes were let go after training, because"
        " --keep-trajectories was 0 or less than a segment (64 MiB), which goes as a whole; raise"
        f" it in the next run, or see by --group {group_id(max(stored))} what the ledger knows"
    )
