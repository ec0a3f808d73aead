"""The rows of a lease, fetched by the ranks that train on them, and no others. Of several ranks
that train on the same rows (`Replica`) one asks the buffer, and tells the others its answer.

Refused are columns that are not what their row promises.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from agentrl.clock import Clock
from agentrl.columns import COLUMNS, Column
from agentrl.errors import DataError, PeerLostError
from agentrl.learner.collective_errors import Rank, by_source
from agentrl.learner.collective_request import LearnerPeer
from agentrl.learner.question import raise_if_refused
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.types import TrajectoryRow
from agentrl.wire.messages import Fetch, Rows, Welcome

__all__ = ["Replica", "RowClient", "SharesRows"]

logger = logging.getLogger(__name__)

#: After so long without an answer a Fetch is sent again: the buffer drops what it cannot send.
RESEND_FETCH_S = 30.0
#: Stored bytes asked for in one Fetch, well below the limit of a message; a larger single payload
#: travels alone.
FETCH_BYTES = 48 * 1024**2


class Replica(Rank, Protocol):
    """Ranks that train on the same rows, of which the source asks for them. number: the source's
    among all ranks."""

    number: int


@runtime_checkable
class SharesRows(Protocol):
    """A backend of which several ranks train on the same rows has this too; None: one does."""

    replica: Replica | None


class _Answer(NamedTuple):
    """`columns`: those of each payload in order, empty for `missing` ones."""

    missing: list[int]
    columns: list[bytes]


class RowClient:
    """Fetches the columns of trajectories by reference. `replica`: whose ranks call `fetch_shared`
    together; None: each asks for itself. `timeout_s`: deadline of one Fetch."""

    def __init__(
        self,
        peer: LearnerPeer,
        clock: Clock,
        replica: Replica | None = None,
        *,
        timeout_s: float = 120.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._peer = peer
        self._clock = clock
        self._replica = replica
        self._requests = itertools.count(1)

    def fetch(
        self, rows: Sequence[TrajectoryRow], optional: Sequence[Column] = ()
    ) -> list[Trajectory | None]:
        """The trajectories in the order of `rows`, with these optional columns and no other; None
        where the stored payload is damaged.

        Raises PeerLostError when the buffer misses its deadline, DataError for columns that are
        not what their row promises.
        """
        return self._fetch(rows, optional, self._ask)

    def fetch_shared(
        self, rows: Sequence[TrajectoryRow], optional: Sequence[Column] = ()
    ) -> list[Trajectory | None]:
        """As `fetch`, by all ranks of the replica together: they name the same rows, and what fails
        on the one that asks is raised on all."""
        return self._fetch(rows, optional, self._ask if self._replica is None else self._share)

    def _fetch(
        self,
        rows: Sequence[TrajectoryRow],
        optional: Sequence[Column],
        ask: Callable[[Fetch], _Answer],
    ) -> list[Trajectory | None]:
        chunks = _chunks(rows)
        return [found for chunk in chunks for found in self._fetch_chunk(chunk, optional, ask)]

    def _fetch_chunk(
        self,
        rows: Sequence[TrajectoryRow],
        optional: Sequence[Column],
        ask: Callable[[Fetch], _Answer],
    ) -> Iterator[Trajectory | None]:
        request = next(self._requests)
        there = [row.meta.columns for row in rows]
        wanted = [*COLUMNS, *(column.name for column in optional)]
        names = [n for n in wanted if n in COLUMNS or n in (c.name for each in there for c in each)]
        payloads = [row.payload for row in rows]
        fetch = Fetch(request, payloads, names, there if any(there) else [])
        answer = ask(fetch)
        columns = answer.columns
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

    def _share(self, fetch: Fetch) -> _Answer:
        assert self._replica is not None

        def ask() -> _Answer:
            answer = self._ask(fetch)
            return answer._replace(columns=[bytes(column) for column in answer.columns])

        return by_source(self._replica, ask, _Answer, self._replica.number)

    def _ask(self, fetch: Fetch) -> _Answer:
        deadline = self._clock.now() + self._timeout_s
        send_at = self._clock.now()
        while (now := self._clock.now()) < deadline:
            if now >= send_at:
                self._peer.send(fetch)
                send_at = now + RESEND_FETCH_S
            try:
                message, columns = self._peer.receive(min(send_at, deadline) - now)
            except TimeoutError:
                continue
            raise_if_refused(message)
            if isinstance(message, Rows) and message.request == fetch.request:
                return _Answer(message.missing, list(columns))
            if isinstance(message, Welcome):
                send_at = now
        raise PeerLostError(
            f"the buffer did not answer fetch {fetch.request} ({len(fetch.payloads)} payloads) "
            f"within {self._timeout_s:g} s: see its log, and --call-timeout-s"
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
