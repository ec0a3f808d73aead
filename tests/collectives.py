"""The collectives of a `TrainBackend` without torch.distributed: of one rank, and of several that
are threads of this process. Backends of tests are built on them."""

import math
import threading
from collections.abc import Sequence
from typing import Any

from agentrl.columns import Column

__all__ = ["OneRank", "Thread", "Threads"]


class OneRank:
    """The only rank there is."""

    data_parallel_rank, data_parallel_size = 0, 1
    columns: tuple[Column, ...] = ()
    is_source = True

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """`data`."""
        assert data is not None
        return data

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """`values`."""
        return list(values)

    def all_gather(self, value: Any) -> list[Any]:
        """`value` alone."""
        return [value]


class Threads:
    """What `size` ranks meet at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=300)

    def gather(self, rank: int, value: Any) -> list[Any]:
        """`value` of each rank, in their order."""
        self._slots[rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


class Thread:
    """One of several ranks, each with rows of its own."""

    columns: tuple[Column, ...] = ()

    def __init__(self, threads: Threads, rank: int) -> None:
        self.data_parallel_rank, self.data_parallel_size = rank, threads.size
        self.is_source = rank == 0
        self._threads = threads

    def gather(self, value: Any) -> list[Any]:
        """`value`, which stays what it is, of every rank."""
        return self._threads.gather(self.data_parallel_rank, value)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """`data` of rank 0."""
        found = self.gather(data)[0]
        assert isinstance(found, bytes)
        return found

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks."""
        return [math.fsum(column) for column in zip(*self.gather(list(values)), strict=True)]

    def all_gather(self, value: Any) -> list[Any]:
        """`value` of every rank."""
        return self.gather(value)
