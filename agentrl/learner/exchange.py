"""The rows of a lease, fetched by the rank that trains on them, and no others.

Refused are columns that are not what their row promises.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.clock import Clock
from agentrl.columns import COLUMNS, Column
from agentrl.errors import DataError, PeerLostError
from agentrl.learner.asking import LearnerPeer
from agentrl.learner.question import raise_if_refused
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.types import TrajectoryRow
from agentrl.wire.messages import Fetch, Rows, Welcome

__all__ = ["RowClient"]

logger = logging.getLogger(__name__)

#: Deadline of one Fetch.
FETCH_TIMEOUT_S = 120.0
#: Stored bytes asked for in one Fetch, well below the limit of a message; a larger single payload
#: travels alone.
FETCH_BYTES = 48 * 1024**2


class RowClient:
    """Fetches the columns of trajectories by reference."""

    def __init__(self, peer: LearnerPeer, clock: Clock) -> None:
        self._peer = peer
        self._clock = clock
        self._requests = itertools.count(1)

    def fetch(
        self, rows: Sequence[TrajectoryRow], optional: Sequence[Column] = ()
    ) -> list[Trajectory | None]:
        """The trajectories in the order of `rows`, with these optional columns and no other; None
        where the stored payload is damaged.

        Raises PeerLostError when the buffer misses its deadline, DataError for columns that are
        not what their row promises.
        """
        found: list[Trajectory | None] = []
        for chunk in _chunks(rows):
            found.extend(self._fetch_chunk(chunk, optional))
        return found

    def _fetch_chunk(
        self, rows: Sequence[TrajectoryRow], optional: Sequence[Column]
    ) -> Iterator[Trajectory | None]:
        request = next(self._requests)
        there = [row.meta.columns for row in rows]
        wanted = [*COLUMNS, *(column.name for column in optional)]
        names = [n for n in wanted if n in COLUMNS or n in (c.name for each in there for c in each)]
        payloads = [row.payload for row in rows]
        fetch = Fetch(request, payloads, names, there if any(there) else [])
        answer, columns = self._ask(fetch)
        width = len(names)
        if len(columns) != width * len(rows):
            raise DataError(
                f"answer to fetch {request} has {len(columns)} columns instead of "
                f"{width * len(rows)} for {len(rows)} trajectories"
            )
        missing = set(answer.missing)
        for index, row in enumerate(rows):
            if index in missing:
                logger.error(
                    "payload of episode %s is damaged in store %s (segment %d, offset %d): it "
                    "leaves the loss",
                    row.episode,
                    row.payload.store,
                    row.payload.segment,
                    row.payload.offset,
                )
                yield None
            else:
                own = dict(zip(names, columns[index * width :], strict=False))
                yield decode_trajectory(row, [own.get(n, b"") for n in wanted], optional)

    def _ask(self, fetch: Fetch) -> tuple[Rows, Sequence[Any]]:
        deadline = self._clock.now() + FETCH_TIMEOUT_S
        self._peer.send(fetch)
        while (left_s := deadline - self._clock.now()) > 0:
            try:
                message, columns = self._peer.receive(left_s)
            except TimeoutError:
                break
            raise_if_refused(message)
            if isinstance(message, Rows) and message.request == fetch.request:
                return message, columns
            if isinstance(message, Welcome):
                self._peer.send(fetch)
        raise PeerLostError(
            f"the buffer did not answer fetch {fetch.request} ({len(fetch.payloads)} payloads) "
            f"within {FETCH_TIMEOUT_S:g} s: see its log"
        )


def _chunks(rows: Sequence[TrajectoryRow]) -> Iterator[Sequence[TrajectoryRow]]:
    start = 0
    num_bytes = 0
    for index, row in enumerate(rows):
        if index > start and num_bytes + row.payload.num_bytes > FETCH_BYTES:
            yield rows[start:index]
            start, num_bytes = index, 0
        num_bytes += row.payload.num_bytes
    if start < len(rows):
        yield rows[start:]
