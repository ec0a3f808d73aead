"""What the learner saves of its leases, and under which versions it trains what was saved.

A saved iteration carries the versions of its run. So the ages of its tokens are those that the run
itself would have seen, whatever weights they are trained under now.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.config.run import RunConfig
from agentrl.errors import DataError, InfrastructureError
from agentrl.learner.lease_client import RowClient
from agentrl.learner.rows import Trajectory
from agentrl.lineage import Lineage
from agentrl.numbered import numbered
from agentrl.rollout_file import Columns, Rollouts, read_rollouts, write_rollouts
from agentrl.types import GroupRows, LeaseHeader

__all__ = ["lineage_of", "save_rollouts", "write_lease"]

logger = logging.getLogger(__name__)


def save_rollouts(
    config: RunConfig, header: LeaseHeader, lineage: Lineage, rows: RowClient
) -> None:
    """Write the lease and its columns to the files that the flags name, before anything is made of
    them. One with a damaged payload is told and not saved: it could not be trained again.

    Raises InfrastructureError for a disk that fails, and what `RowClient.fetch` raises.
    """
    for template in config.saved_rollouts:
        path = numbered(template, header.number)
        try:
            write_lease(path, header, lineage, rows)
        except DataError as error:
            logger.error("the rollouts of iteration %d are not saved: %s", header.number, error)
        except OSError as error:
            raise InfrastructureError(
                f"the rollouts of iteration {header.number} cannot be saved to {path}: {error}"
            ) from error
        else:
            logger.info("the rollouts of iteration %d are in %s", header.number, path)


def write_lease(path: Path, header: LeaseHeader, lineage: Lineage, rows: RowClient) -> None:
    """Write a lease and its columns to a file. Raises DataError where a payload is damaged,
    OSError, and what `RowClient.fetch` raises."""
    rollouts = Rollouts(header, list(lineage.rows.values()))
    write_rollouts(path, rollouts, lambda group: _columns(group, rows))


def _columns(group: GroupRows, rows: RowClient) -> Iterator[Columns]:
    optional = list(dict.fromkeys(c for row in group.trajectories for c in row.meta.columns))
    found = rows.fetch(group.trajectories, optional)
    for row, trajectory in zip(group.trajectories, found, strict=True):
        if trajectory is None:
            raise DataError(f"the payload of episode {row.episode} is damaged")
        yield _of(trajectory)


def _of(trajectory: Trajectory) -> Columns:
    """In the order of the layout, as they travelled."""
    named = {column.name: items for column, items in trajectory.optional.items()}
    layout = [column.name for column in trajectory.row.meta.layout]
    return [
        (named[name] if name in named else getattr(trajectory, f"{name}_L")).tobytes()
        for name in layout
    ]


def lineage_of(config: RunConfig, number: int, own: Lineage) -> Lineage:
    """The versions by which the tokens of lease `number` have an age: those of this run, or of the
    one that saved what is loaded. There they count from another iteration if the file is that of
    another one."""
    if config.load_debug_rollout_data is None:
        return own
    saved = read_rollouts(numbered(config.load_debug_rollout_data, number))
    moved = number - saved.lease.number
    rows = [msgspec.structs.replace(r, iteration=r.iteration + moved) for r in saved.versions]
    return Lineage(rows)
