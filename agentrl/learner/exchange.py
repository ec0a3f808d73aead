"""What a learner rank asks of the buffer: leases and rows.

The source rank alone asks for leases; its answer reaches the other ranks by broadcast. While it
waits it broadcasts a heartbeat every `LEASE_WAIT_S`, so that no collective outlives its own
deadline however long generation takes, and a request to stop is seen by all ranks at the same
moment. Every rank fetches its own rows, and no others.

A Welcome means that the connection was made anew: what was unanswered is asked again. Refuses an
answer out of order, and any `Refused` from the buffer.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from agentrl.clock import Clock
from agentrl.errors import DataError, FencedError, PeerLostError
from agentrl.learner.backend import TrainBackend
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.types import COLUMNS, TrajectoryRow
from agentrl.wire.messages import (
    Fetch,
    Heartbeat,
    Lease,
    LeaseRequest,
    Message,
    NoMoreLeases,
    Refused,
    Rows,
    Welcome,
)

__all__ = ["LearnerPeer", "LeaseClient", "Republish", "RowClient", "StopRequested"]

logger = logging.getLogger(__name__)

#: Seconds of one bounded wait for a lease; also how soon a request to stop is seen.
LEASE_WAIT_S = 2.0
#: Seconds after which an unanswered LeaseRequest is sent again (the buffer may have restarted).
LEASE_RESEND_S = 30.0
#: Deadline of one Fetch.
FETCH_TIMEOUT_S = 120.0
#: Stored bytes asked for in one Fetch, well below the limit of a message; a larger single payload
#: travels alone.
FETCH_BYTES = 48 * 1024**2


class StopRequested(msgspec.Struct, frozen=True, tag_field="t", tag="stop_requested"):
    """The source rank was asked to stop: all ranks end here."""


class Republish(msgspec.Struct, frozen=True, tag_field="t", tag="republish"):
    """An engine lacks the newest weights: all ranks publish, then wait on."""


_Decision = Lease | NoMoreLeases | StopRequested | Republish | Heartbeat


class LearnerPeer(Protocol):
    """A connection to the buffer, used from one thread (`agentrl.wire.blocking.BlockingPeer`)."""

    @property
    def welcome(self) -> Welcome:
        """The buffer's last Welcome."""
        ...

    def send(self, message: Message, /) -> None:
        """Send once, without asking for an Ack."""
        ...

    def deliver(self, message: Message, /) -> object:
        """Queue a message that is resent until the buffer has committed it, in order."""
        ...

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        """The next message and its columns; raises TimeoutError after `timeout_s`."""
        ...

    def flush(self, timeout_s: float, /) -> None:
        """Wait until everything delivered has been committed; raises PeerLostError."""
        ...


class LeaseClient:
    """Asks for leases, one at a time, on the source rank; the other ranks only listen."""

    def __init__(
        self,
        peer: LearnerPeer,
        backend: TrainBackend,
        should_stop: Callable[[], bool],
        should_republish: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._peer = peer
        self._backend = backend
        self._should_stop = should_stop
        self._should_republish = should_republish
        self._clock = clock
        self._ask_at = 0.0

    def next(self, number: int) -> Lease | NoMoreLeases | StopRequested | Republish:
        """Lease `number`, or why none will come, or what to do before. Collective: every rank gets
        the same answer.

        Raises DataError for a lease out of order, and what the connection raises when the buffer
        is gone.
        """
        self._ask_at = self._clock.now()
        while True:
            payload = None
            if self._backend.is_source:
                payload = msgspec.msgpack.encode(self._wait_once(number))
            decision: _Decision = msgspec.msgpack.decode(
                self._backend.broadcast_bytes(payload), type=_Decision
            )
            if not isinstance(decision, Heartbeat):
                return decision

    def _wait_once(self, number: int) -> _Decision:
        if self._should_stop():
            return StopRequested()
        if self._should_republish():
            return Republish()
        if self._clock.now() >= self._ask_at:
            self._peer.send(LeaseRequest(number))
            self._ask_at = self._clock.now() + LEASE_RESEND_S
        try:
            message, _ = self._peer.receive(LEASE_WAIT_S)
        except TimeoutError:
            return Heartbeat()
        _raise_if_refused(message)
        if isinstance(message, Lease) and message.header.number >= number:
            return _in_order(message, number)
        if isinstance(message, NoMoreLeases) and message.after < number:
            return message
        if isinstance(message, Welcome):
            self._ask_at = self._clock.now()
        return Heartbeat()


def _in_order(lease: Lease, number: int) -> Lease:
    if lease.header.number != number:
        raise DataError(
            f"lease {lease.header.number} came while the learner waits for lease {number}: "
            "leases must be stepped in order"
        )
    return lease


class RowClient:
    """Fetches the columns of trajectories by reference."""

    def __init__(self, peer: LearnerPeer, clock: Clock) -> None:
        self._peer = peer
        self._clock = clock
        self._requests = itertools.count(1)

    def fetch(self, rows: Sequence[TrajectoryRow]) -> list[Trajectory | None]:
        """The trajectories in the order of `rows`; None where the stored payload is damaged.

        Raises PeerLostError when the buffer misses its deadline, DataError for columns that are
        not what their row promises.
        """
        found: list[Trajectory | None] = []
        for chunk in _chunks(rows):
            found.extend(self._fetch_chunk(chunk))
        return found

    def _fetch_chunk(self, rows: Sequence[TrajectoryRow]) -> Iterator[Trajectory | None]:
        request = next(self._requests)
        answer, columns = self._ask(Fetch(request, [row.payload for row in rows]))
        width = len(COLUMNS)
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
                yield decode_trajectory(row, columns[index * width : (index + 1) * width])

    def _ask(self, fetch: Fetch) -> tuple[Rows, Sequence[Any]]:
        deadline = self._clock.now() + FETCH_TIMEOUT_S
        self._peer.send(fetch)
        while (left_s := deadline - self._clock.now()) > 0:
            try:
                message, columns = self._peer.receive(left_s)
            except TimeoutError:
                break
            _raise_if_refused(message)
            if isinstance(message, Rows) and message.request == fetch.request:
                return message, columns
            if isinstance(message, Welcome):
                self._peer.send(fetch)
        raise PeerLostError(
            f"the buffer did not answer fetch {fetch.request} ({len(fetch.payloads)} payloads) "
            f"within {FETCH_TIMEOUT_S:g} s: see its log"
        )


def _raise_if_refused(message: Message) -> None:
    """Raise FencedError or DataError when the buffer refused something this learner sent."""
    if not isinstance(message, Refused):
        return
    if message.fatal:
        raise FencedError(f"the buffer refused this learner: {message.reason}")
    raise DataError(f"the buffer refused message {message.seq} of the learner: {message.reason}")


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
