"""Run directories as a buffer leaves them, written without one."""

import sqlite3
from pathlib import Path

from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import EpisodeRow, GroupRow, LeaseRow, Mark, Row, StoredTrajectory
from agentrl.buffer.store import PayloadStore
from agentrl.buffer.tables import TABLES, digest
from agentrl.columns import TOKEN_BYTES
from agentrl.types import Fate, GroupState, Outcome, Task, TrajectoryMeta, VersionRow


def trained_run(folder: Path) -> None:
    """Three groups: one trained, one leased, one minted."""
    with (
        Ledger(folder / "ledger.db") as ledger,
        PayloadStore(folder / "payload", segment_bytes=1000, first=1) as store,
    ):
        rows: list[Row] = [VersionRow(1, None, 0), Mark("retired_through", 1)]
        for mint in (1, 2):
            fate = Fate.TRAINED if mint == 1 else None
            state = GroupState.RETIRED if mint == 1 else GroupState.LEASED
            meta = TrajectoryMeta(1, 1, 1, 0.0, [(1, 1)])
            line = StoredTrajectory(meta, store.append([b"x" * TOKEN_BYTES]))
            group = GroupRow(mint, Task(str(mint), {}), 1, mint, state, fate, mint, (0.0,))
            episode = EpisodeRow(mint, 0, outcome=Outcome.DONE, trajectories=(line,))
            rows += [group, episode, LeaseRow(mint, (mint,), stepped_by=2 - mint)]
        rows += [GroupRow(3, Task("3", {}), 1, 3), EpisodeRow(3, 0)]
        store.sync()
        ledger.commit(rows)


def retired_run(folder: Path, segments: int) -> None:
    """Groups 1, 2, ... of one token each, all trained, each in a segment of its own."""
    with (
        Ledger(folder / "ledger.db") as ledger,
        PayloadStore(folder / "payload", segment_bytes=1, first=1) as store,
    ):
        rows: list[Row] = [VersionRow(1, None, 0)]
        for mint in range(1, segments + 1):
            meta = TrajectoryMeta(1, 1, 1, 0.0, [(1, 1)])
            line = StoredTrajectory(meta, store.append([b"x" * TOKEN_BYTES]))
            state, fate = GroupState.RETIRED, Fate.TRAINED
            group = GroupRow(mint, Task(str(mint), {}), 1, mint, state, fate, mint, (0.0,))
            episode = EpisodeRow(mint, 0, outcome=Outcome.DONE, trajectories=(line,))
            rows += [group, episode, LeaseRow(mint, (mint,), stepped_by=1)]
        rows += [Mark("retired_through", segments), Mark("published_through", segments)]
        store.sync()
        ledger.commit(rows)


def rewrite(ledger: Path, statement: str) -> None:
    """Change rows as a bug of the buffer would, with digests that fit them."""
    db = sqlite3.connect(ledger)
    db.execute(statement)
    for table in TABLES.values():
        columns = ", ".join((*table.columns, "row"))
        key = " AND ".join(f"{column} = ?" for column in table.columns[: table.num_keys])
        for line in db.execute(f"SELECT {columns} FROM {table.name}").fetchall():
            values = (digest(table.name, line), *line[: table.num_keys])
            db.execute(f"UPDATE {table.name} SET digest = ? WHERE {key}", values)
    db.commit()
    db.close()
