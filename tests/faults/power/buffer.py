"""A recorded run of the production buffer, and what its Acks owe.

An Ack owes what its message said: that an episode ended so, with these columns; that tasks were
minted; that a group was judged, an iteration stepped, a version published, a lease retired. A lease
that was handed out is owed too.
"""

import signal
from pathlib import Path

import anyio
import msgspec

from agentrl.buffer.ledger import LedgerReader
from agentrl.buffer.rows import EpisodeRow, LedgerState
from agentrl.types import GroupState, Outcome, PayloadRef
from agentrl.wire.messages import (
    Ack,
    Finished,
    GroupScore,
    Lease,
    Message,
    PushDone,
    Retire,
    Stepped,
    Tasks,
)
from tests.faults.power.recording import Record, environment, read
from tests.faults.power.spoken import Spoken, conversation
from tests.integration.buffer_peers import small_run
from tests.integration.buffer_process import Server, play_a_run

__all__ = ["Debt", "Recorded", "recorded", "unpaid"]


class Debt(msgspec.Struct, frozen=True):
    """What must be durable from record `at` on."""

    at: int
    message: Message


class Recorded(msgspec.Struct, frozen=True):
    """A run: where it lay, what happened to its disk, and what it owes, in order."""

    run_dir: Path
    disk_root: Path
    records: list[Record]
    debts: list[Debt]
    payloads: dict[tuple[int, int], list[PayloadRef]]


def recorded(folder: Path, library: Path) -> Recorded:
    """Play a run, with two peaceful restarts in between."""
    root, log = folder / "disk", folder / "log"
    root.mkdir()
    run_dir = root / "runs" / "r"
    server = Server(
        small_run(folder), run_dir, env=environment(library, root, log), end=signal.SIGTERM
    )
    anyio.run(lambda: play_a_run(server, end_at=(3, 6), within_s=600.0))
    records = read(log)
    with LedgerReader(run_dir / "ledger.db") as ledger:
        episodes = ledger.load_all().episodes
    payloads = {(row.mint, row.index): [t.payload for t in row.trajectories] for row in episodes}
    return Recorded(run_dir, root, records, _debts(conversation(records)), payloads)


def _debts(spoken: list[Spoken]) -> list[Debt]:
    heard: dict[tuple[str, int], Message] = {}
    found = []
    for each in spoken:
        match each.said, each.envelope.body:
            case False, message if each.envelope.seq:
                heard[each.connection, each.envelope.seq] = message
            case True, Ack(seqs):
                found += [Debt(each.at, heard[each.connection, seq]) for seq in seqs]
            case True, Lease() as lease:
                found.append(Debt(each.at, lease))
    return found


def unpaid(state: LedgerState, debts: list[Debt]) -> list[Message]:
    """What `state`, all rows of a ledger, lacks of what is owed."""
    episodes = {(row.mint, row.index): row for row in state.episodes}
    return [debt.message for debt in debts if not _is_paid(debt.message, state, episodes)]


def _is_paid(
    message: Message, state: LedgerState, episodes: dict[tuple[int, int], EpisodeRow]
) -> bool:
    groups = {row.mint: row for row in state.groups}
    leases = {row.number: row for row in state.leases}
    match message:
        case Finished(report):
            row = episodes.get((int(report.id.group), report.id.index))
            if row is None or report.outcome is not Outcome.DONE:
                return row is not None and (row.attempt, row.outcome) != (report.id.attempt, None)
            return row.outcome is Outcome.DONE and len(row.trajectories) == len(report.trajectories)
        case GroupScore(group):
            mint = int(group)
            return mint in groups and groups[mint].state is not GroupState.MINTED
        case Tasks(_, cursor):
            return state.cursor >= cursor
        case Stepped(number):
            return number in leases and leases[number].stepped_by > 0
        case PushDone(row=version):
            return version in state.versions
        case Retire(through):
            return any(m.key == "retired_through" and m.value >= through for m in state.marks)
        case Lease(header):
            return header.number in leases and leases[header.number].mints == tuple(
                group.mint for group in header.groups
            )
        case _:
            return True
