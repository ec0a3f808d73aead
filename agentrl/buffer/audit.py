"""Check a run's ledger and payloads offline, against the promises that the buffer makes.

    every minted group has exactly one fate or is open          minted = sum(final fates) + open
    a task is minted once, and again after a group that was stale, or surplus unscored, only
    no group is in two leases, no payload in two episodes       nothing is trained twice
    leases are numbered 1, 2, 3, ...                            stepped in that order
    what is given up with a lease is poison, and that lease and those after it are made again
    payloads of open groups are what was stored                 nothing acknowledged is lost

Only reads, as the buffer of a running run lets nobody else in: its audit is refused.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from agentrl.buffer.groups import may_repeat
from agentrl.buffer.ids import group_id
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import EpisodeRow, GroupRow, LedgerState
from agentrl.buffer.store import read_payload
from agentrl.errors import EnvironmentSetupError, StoreError
from agentrl.types import Fate, GroupState, Outcome

__all__ = ["AuditReport", "audit"]

_LEASED = (GroupState.LEASED, GroupState.STEPPED)
_CONSUMED = (Fate.TRAINED, Fate.SKIPPED)


class AuditReport(msgspec.Struct, frozen=True):
    """What was counted, and what is wrong; each problem names an id."""

    minted: int
    open: int
    fates: dict[Fate, int]
    leases: int
    payloads_checked: int
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not self.problems


def audit(run_dir: Path) -> AuditReport:
    """Audit the run in `run_dir`.

    Raises StoreError when it has no readable ledger, EnvironmentSetupError while its buffer runs.
    """
    path = run_dir / "ledger.db"
    if not path.is_file():
        raise StoreError(
            f"{run_dir} has no ledger.db: it is no run directory, or its run ended while it started"
        )
    try:
        with LedgerReader(path) as ledger:
            state = ledger.load_all()
            contradictions = ledger.contradictions()
    except EnvironmentSetupError as error:
        raise EnvironmentSetupError(
            f"{run_dir} is still going on, and only a run that has ended can be audited: wait for"
            f" its end, or stop it; `agentrl view {run_dir}` shows it as it is now"
        ) from error
    problems = (
        *contradictions,
        *_group_problems(state),
        *_conservation_problems(state),
        *_lease_problems(state),
        *_episode_problems(state),
        *_payload_problems(run_dir / "payload", state),
    )
    return AuditReport(
        minted=state.minted,
        open=sum(group.fate is None for group in state.groups),
        fates=dict(Counter(group.fate for group in state.groups if group.fate is not None)),
        leases=sum(bool(lease.mints) for lease in state.leases),
        payloads_checked=sum(len(row.trajectories) for row in _open_episodes(state)),
        problems=problems,
    )


def _group_problems(state: LedgerState) -> Iterator[str]:
    latest: dict[int, GroupRow] = {}
    for number, group in enumerate(state.groups, start=1):
        name = f"group {group_id(group.mint)}"
        if group.mint != number:
            yield f"{name} is the {number}-th one: mint numbers have a gap"
            return
        if not _may_follow(group, latest.get(group.cursor), max(latest, default=0)):
            yield f"{name}: its task was minted before (cursor {group.cursor})"
        latest[group.cursor] = group
        if (group.state is GroupState.RETIRED) != (group.fate is not None):
            yield f"{name} is {group.state} with fate {group.fate}"
        leased = group.state in _LEASED or group.fate in _CONSUMED
        if leased != (group.lease is not None):
            yield f"{name} is {group.state} with fate {group.fate} and lease {group.lease}"


def _may_follow(group: GroupRow, before: GroupRow | None, cursor: int) -> bool:
    """Whether a group may be minted: of the next task, or of one whose group came to nothing."""
    if before is None:
        return group.cursor > cursor and group.repeat == 0
    return may_repeat(before) and group.repeat == before.repeat + 1


def _conservation_problems(state: LedgerState) -> Iterator[str]:
    fates = sum(group.fate is not None for group in state.groups)
    open_groups = sum(group.state is not GroupState.RETIRED for group in state.groups)
    if state.minted != fates + open_groups:
        yield f"{state.minted} groups are minted, {fates} have a fate and {open_groups} are open"


def _lease_problems(state: LedgerState) -> Iterator[str]:
    groups = {group.mint: group for group in state.groups}
    marks = {mark.key: mark.value for mark in state.marks}
    leased: dict[int, int] = {}
    unmade = 0
    for number, lease in enumerate(state.leases, start=1):
        if lease.number != number:
            yield f"lease {lease.number} is the {number}-th one: lease numbers have a gap"
            return
        retired = number <= marks.get("retired_through", 0)
        unmade = unmade or (0 if lease.mints else number)
        if unmade and (retired or lease.mints):
            yield f"lease {number} is there or retired, and lease {unmade} was given up"
        for mint in lease.given_up:
            if mint not in groups or groups[mint].fate is not Fate.POISON:
                yield f"group {group_id(mint)} was given up with lease {number} and is not poison"
        for mint in lease.mints:
            name = f"group {group_id(mint)}"
            if mint in leased:
                yield f"{name} is in lease {leased[mint]} and in lease {number}"
            leased[mint] = number
            group = groups.get(mint)
            if group is None or group.lease != number:
                yield f"{name} is in lease {number}, its own row says otherwise"
            elif retired != (group.fate in _CONSUMED):
                yield f"{name} of lease {number} is {group.state} with fate {group.fate}"
    for group in state.groups:
        if group.lease is not None and leased.get(group.mint) != group.lease:
            yield f"group {group_id(group.mint)} names lease {group.lease}, which lacks it"


def _episode_problems(state: LedgerState) -> Iterator[str]:
    rows: dict[int, list[EpisodeRow]] = {}
    for row in state.episodes:
        rows.setdefault(row.mint, []).append(row)
    versions = {row.version for row in state.versions}
    for group in state.groups:
        mine = rows.pop(group.mint, [])
        name = f"group {group_id(group.mint)}"
        if [row.index for row in mine] != list(range(group.size)):
            yield f"{name} has {len(mine)} episodes of {group.size}"
        yield from (f"{name}: {problem}" for problem in _rewards_problems(group, mine))
        for row in mine:
            used = {version for line in row.trajectories for version, _ in line.meta.versions}
            if used - versions:
                yield f"{name}/{row.index} names unknown versions {sorted(used - versions)}"
    for mint in rows:
        yield f"episodes of group {group_id(mint)}, which was never minted"


def _rewards_problems(group: GroupRow, rows: list[EpisodeRow]) -> Iterator[str]:
    done = [row for row in rows if row.outcome is Outcome.DONE]
    if any(not row.trajectories for row in done):
        yield "an episode is done and has no trajectory"
    trainable = group.state is GroupState.READY or group.lease is not None
    if trainable and len(group.rewards or ()) != len(done):
        yield f"{len(group.rewards or ())} rewards for {len(done)} done episodes"
    if group.state is GroupState.RETIRED and any(row.outcome is None for row in rows):
        yield "it is retired and an episode has no outcome"


def _payload_problems(folder: Path, state: LedgerState) -> Iterator[str]:
    ends: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for row in state.episodes:
        for line in row.trajectories:
            ref = line.payload
            place = (ref.offset, ref.offset + ref.num_bytes, f"{group_id(row.mint)}/{row.index}")
            ends.setdefault((ref.store, ref.segment), []).append(place)
    for (_, segment), places in ends.items():
        places.sort()
        for (_, end, first), (start, _, second) in pairwise(places):
            if start < end:
                yield f"episodes {first} and {second} share bytes of segment {segment}"
    for row in _open_episodes(state):
        for line in row.trajectories:
            try:
                read_payload(folder, line.payload)
            except StoreError as error:
                yield f"episode {group_id(row.mint)}/{row.index}: {error}"


def _open_episodes(state: LedgerState) -> Iterator[EpisodeRow]:
    open_mints = {group.mint for group in state.groups if group.fate is None}
    return (row for row in state.episodes if row.mint in open_mints)
