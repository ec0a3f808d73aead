"""`--load-debug-rollout-data`: saved iterations become the leases of a run that plays nothing.

    files -> payload/ and ledger.db, as an interrupted run would have left them -> buffer, learner

So the buffer hands them out, counts, retires and audits them by the rules of every run, and the run
can be continued. Each iteration gets groups of its own numbers; their columns are copied byte for
byte. Refused: files that are missing, damaged, or of two runs, before any process is started.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.payloads import defect
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow, Row, StoredTrajectory
from agentrl.buffer.settings import SEGMENT_BYTES
from agentrl.buffer.store import PayloadStore
from agentrl.columns import split
from agentrl.config.rollouts import loaded_files
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.rollout_file import Rollouts, read_columns, read_rollouts
from agentrl.types import (
    EpisodeId,
    EpisodeReport,
    GroupRows,
    GroupState,
    Outcome,
    StopReason,
    Task,
    VersionRow,
)

__all__ = ["take_rollouts", "with_loaded"]


def with_loaded(config: RunConfig) -> RunConfig:
    """`config` with as many iterations as are loaded. Raises DataError."""
    if not config.loads_rollouts:
        return config
    return msgspec.structs.replace(config, num_rollout=len(loaded_files(config)))


def take_rollouts(config: RunConfig, run: Path) -> list[str]:
    """Write the loaded iterations into the ledger and the store of the run in `run`, unless they
    are there; a note on what there is. Raises DataError."""
    with Ledger(run / "ledger.db") as ledger:
        if ledger.load().last_lease:
            return []
        files = loaded_files(config)
        with PayloadStore(run / "payload", segment_bytes=SEGMENT_BYTES, first=1) as store:
            rows = [*_rows(files, store)]
            store.sync()
        ledger.commit(rows)
    num_groups = sum(isinstance(row, GroupRow) for row in rows)
    what = f"{len(files)} saved iterations of {num_groups} groups in all, the first {files[0]}"
    return [f"training on {what}; nothing is played"]


def _rows(files: list[Path], store: PayloadStore) -> Iterator[Row]:
    versions: dict[int, VersionRow] = {}
    mint = 1
    for number, path in enumerate(files, start=1):
        found = read_rollouts(path)
        for version in found.versions:
            if versions.setdefault(version.version, version) != version:
                raise DataError(
                    f"{path} is of another run than {files[0]}: version {version.version} has "
                    "another history there; load the files of one run"
                )
        mints = range(mint, mint + len(found.lease.groups))
        mint = mints.stop
        yield from _groups(path, found, mints, number, store)
        is_last = number == len(files)
        yield LeaseRow(number, tuple(mints), last=is_last, stats=found.lease.stats)
    yield from (versions[number] for number in sorted(versions))


def _groups(
    path: Path, found: Rollouts, mints: range, lease: int, store: PayloadStore
) -> Iterator[Row]:
    with path.open("rb") as file:
        for mint, group in zip(mints, found.lease.groups, strict=True):
            stored: dict[EpisodeId, list[StoredTrajectory]] = {}
            for row in group.trajectories:
                ref = store.append([data := read_columns(file, row)])
                stored.setdefault(row.episode, []).append(StoredTrajectory(row.meta, ref))
                columns = [*split(row.meta.layout, data).values()]
                report = EpisodeReport(row.episode, Outcome.DONE, StopReason.TERMINATED, [row.meta])
                if (why := defect(report, columns)) is not None:
                    raise DataError(f"{path}: episode {row.episode}: {why}")
            yield GroupRow(
                mint,
                Task(group.task, {}),
                size=len(group.episodes),
                cursor=mint,
                state=GroupState.LEASED,
                lease=lease,
                rewards=tuple(group.rewards),
            )
            yield from _episodes(mint, group, stored)


def _episodes(
    mint: int, group: GroupRows, stored: dict[EpisodeId, list[StoredTrajectory]]
) -> Iterator[EpisodeRow]:
    """Those that are done: others of the group were left out when it was leased."""
    for index, id in enumerate(group.episodes):
        told = EpisodeRow(
            mint,
            index,
            outcome=Outcome.DONE,
            reward=group.rewards[index],
            trajectories=tuple(stored[id]),
            stop_reason=group.stop_reasons[index] if group.stop_reasons else None,
            metrics=group.metrics[index] if group.metrics else {},
        )
        facts = group.facts[index] if group.facts else told.facts
        yield msgspec.structs.replace(told, facts=facts)
