"""Judges a run by its ledger, its weights and its history, when all of its processes have ended.

    ledger        `agentrl audit`; an acknowledged episode has its outcome or was given out anew
    weights       the groups that the last checkpoint was trained on: each once, as leased
    both          a group that is trained is whole: all of its episodes, each with its columns
    history       a lease that is trained again has the same rows; the same weights and the same
                  tokens give the same weights; no process unpickles anything

The checker believes no process: what the learner says is compared with what its weights carry.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agentrl.buffer.audit import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import LedgerState
from agentrl.learner.checkpoints import newest_valid
from agentrl.types import EpisodeId, Fate, Outcome
from tests.faults import history
from tests.faults.history import Record

__all__ = ["Findings", "judge"]

_CONSUMED = (Fate.TRAINED, Fate.SKIPPED)


class Findings(msgspec.Struct, frozen=True):
    """What a run came to. `lost`: groups without a fate in a run that ended, and acknowledged
    episodes that the ledger lacks. `twice`: groups that the surviving weights were trained on more
    than once. `problems`: contradictions, each with an id."""

    minted: int
    trajectories: int
    fates: dict[Fate, int]
    lost: list[str]
    twice: list[str]
    problems: list[str]
    weights: str
    iterations: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.twice or self.problems)


def judge(folder: Path, *, is_complete: bool = True) -> Findings:
    """Judge the run of the lab in `folder`; `is_complete`: it came to its end and was drained."""
    run = folder / "run"
    report = audit(run)
    with LedgerReader(run / "ledger.db") as reader:
        ledger = reader.load_all()
    found = newest_valid(run / "recovery")
    consumed = _consumed(found.state if found else None)
    trained = history.read(folder, "trained")
    lost = [*_unfated(ledger, is_complete), *_forgotten(folder, ledger)]
    times = Counter(mint for _, mints in consumed for mint in mints)
    problems = [
        *report.problems,
        *_misfits(consumed, ledger, is_complete),
        *_partial_groups(ledger),
        *_unequal_replays(trained),
        *(f"{r.who} unpickled {r.data}" for r in history.read(folder, "unpickled")),
    ]
    return Findings(
        minted=ledger.minted,
        trajectories=sum(len(row.trajectories) for row in ledger.episodes),
        fates=report.fates,
        lost=lost,
        twice=[f"group {mint} was trained {n} times" for mint, n in times.items() if n > 1],
        problems=problems,
        weights=_weights_after(trained, consumed),
        iterations=len(consumed),
    )


def _consumed(state: Path | None) -> list[tuple[int, list[int]]]:
    if state is None:
        return []
    data = (state / "consumed.json").read_bytes()
    return msgspec.json.decode(data, type=list[tuple[int, list[int]]])


def _unfated(ledger: LedgerState, is_complete: bool) -> Iterator[str]:
    if is_complete:
        yield from (f"group {g.mint} is {g.state}" for g in ledger.groups if g.fate is None)


def _forgotten(folder: Path, ledger: LedgerState) -> Iterator[str]:
    """Acknowledged reports that the ledger does not hold, and that no later attempt had replaced
    when they were acknowledged."""
    rows = {(row.mint, row.index): row for row in ledger.episodes}
    retried_at: dict[tuple[int, int, int], float] = {}
    for record in history.read(folder, "retried"):
        for mint, index, attempt in record.data["episodes"]:
            retried_at.setdefault((mint, index, attempt), record.at)
    for record in history.read(folder, "acked"):
        id = msgspec.convert(record.data["episode"], EpisodeId)
        place = (int(id.group), id.index)
        row = rows.get(place)
        if row is None:
            yield f"episode {id} was acknowledged and is unknown"
        elif row.attempt == id.attempt and row.outcome is None:
            yield f"episode {id} was acknowledged and has no outcome"
        elif row.attempt < id.attempt:
            yield f"episode {id} was acknowledged, the ledger is at attempt {row.attempt}"
        elif row.attempt > id.attempt and not any(
            retried_at.get((*place, later), record.at) < record.at
            for later in range(id.attempt + 1, row.attempt + 1)
        ):
            yield f"episode {id} was acknowledged, and then played again as #{row.attempt}"


def _misfits(
    consumed: list[tuple[int, list[int]]], ledger: LedgerState, is_complete: bool
) -> Iterator[str]:
    """Where the weights and the ledger tell two stories."""
    leases = {row.number: list(row.mints) for row in ledger.leases}
    numbers = [number for number, _ in consumed]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the weights were trained on leases {numbers}"
    for number, mints in consumed:
        if leases.get(number) != mints:
            yield f"lease {number} holds {leases.get(number)}, the weights {mints}"
    if is_complete:
        told = {group.mint for group in ledger.groups if group.fate in _CONSUMED}
        held = {mint for _, mints in consumed for mint in mints}
        if told != held:
            yield f"trained by the ledger alone {told - held}, by the weights alone {held - told}"


def _partial_groups(ledger: LedgerState) -> Iterator[str]:
    sizes = {group.mint: group.size for group in ledger.groups if group.lease is not None}
    whole = Counter(
        row.mint for row in ledger.episodes if row.outcome is Outcome.DONE and row.trajectories
    )
    for mint, size in sizes.items():
        if whole[mint] != size:
            yield f"group {mint} is leased with {whole[mint]} of {size} episodes"


def _unequal_replays(trained: list[Record]) -> Iterator[str]:
    rows: dict[int, Any] = {}
    after: dict[tuple[str, str], str] = {}
    for record in trained:
        data = record.data
        lease = data["lease"]
        if rows.setdefault(lease, data["rows"]) != data["rows"]:
            yield f"lease {lease} was given again with other rows"
        key = (data["before"], data["inputs"])
        if after.setdefault(key, data["after"]) != data["after"]:
            yield f"lease {lease}: the same weights and tokens gave other weights"


def _weights_after(trained: list[Record], consumed: list[tuple[int, list[int]]]) -> str:
    """Digest of the weights after the last consumed lease, as last told."""
    last = len(consumed)
    return next((r.data["after"] for r in reversed(trained) if r.data["lease"] == last), "")
