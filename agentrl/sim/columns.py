"""Where the columns of trajectories lie, without any columns: segments that fill and are dropped.

The model of `agentrl.buffer.store`. Of a payload only its place is kept, which is enough to know
whether it is still there when it is trained.
"""

from collections.abc import Iterable

from agentrl.columns import TOKEN_BYTES
from agentrl.sim.truth import BrokenPromiseError
from agentrl.types import LeaseHeader, PayloadRef

__all__ = ["Columns"]


class Columns:
    """Segments are numbered from 1 on; a full or dropped one is closed. `there`: those on disk."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._segment = 1
        self._offset = 0
        self.there: set[int] = set()

    def append(self, num_tokens: int) -> PayloadRef:
        """Store a trajectory of so many tokens."""
        if self._offset >= self._segment_bytes:
            self._begin(self._segment + 1)
        num_bytes = num_tokens * TOKEN_BYTES
        self.there.add(self._segment)
        ref = PayloadRef("sim", self._segment, self._offset, num_bytes, 0)
        self._offset += num_bytes
        return ref

    def drop(self, segments: Iterable[int]) -> None:
        """Delete segments; the open one is closed first."""
        for segment in segments:
            self.there.discard(segment)
            if segment == self._segment:
                self._begin(segment + 1)

    def reopen(self, first: int) -> None:
        """Another process writes, beginning with segment `first`."""
        self._begin(first)

    def check(self, header: LeaseHeader) -> None:
        """Every payload of a lease must still be there."""
        for group in header.groups:
            for row in group.trajectories:
                if row.payload.segment not in self.there:
                    raise BrokenPromiseError(
                        f"lease {header.number} needs episode {row.episode}, whose segment"
                        f" {row.payload.segment} is dropped"
                    )

    def _begin(self, segment: int) -> None:
        self._segment, self._offset = segment, 0
