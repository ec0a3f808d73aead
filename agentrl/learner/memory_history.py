"""`MemoryHistory`: what took the memory of a rank's GPU (`--record-memory-history`).

    RECORDING -> (memory runs out: a snapshot; goes on) -> ENDED (a snapshot)

A snapshot is a file of torch's own kind, which https://pytorch.org/memory_viz shows. It ends after
the iterations that were asked for, or with the learner. What fails here is told and ends nothing.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from agentrl.disk import make_folder, narrow

__all__ = ["FAILURES", "CudaAllocations", "MemoryHistory", "MemoryRecorder"]

logger = logging.getLogger(__name__)

#: Allocations that are kept, each with its stack; older ones make room.
_MAX_ENTRIES = 1_000_000
#: What torch's profilers raise, and the disk.
FAILURES = (AssertionError, OSError, RuntimeError, ValueError)


class MemoryRecorder(Protocol):
    """What keeps a history of allocations. All may raise what is in `FAILURES`."""

    def start(self, on_exhausted: Callable[[], None]) -> None:
        """Begin; `on_exhausted` is called when an allocation fails, before it raises."""
        ...

    def write(self, path: Path) -> None:
        """Write what is kept."""
        ...

    def stop(self) -> None:
        """Keep nothing more."""
        ...


class CudaAllocations:
    """The `MemoryRecorder` of torch's allocator on CUDA devices of this process."""

    def __init__(self) -> None:
        self._cuda: Any = torch.cuda  # torch leaves these without types

    def start(self, on_exhausted: Callable[[], None]) -> None:
        """See `MemoryRecorder`."""
        self._cuda.init()  # before it there is no allocator to ask
        self._cuda.memory._record_memory_history(max_entries=_MAX_ENTRIES, stacks="all")
        below: Any = torch._C
        below._cuda_attach_out_of_memory_observer(lambda *_: on_exhausted())

    def write(self, path: Path) -> None:
        """See `MemoryRecorder`."""
        self._cuda.memory._dump_snapshot(str(path))

    def stop(self) -> None:
        """See `MemoryRecorder`."""
        self._cuda.memory._record_memory_history(enabled=None)


class MemoryHistory:
    """The history of one rank, from now on. `num_iterations`: ends after so many; None: with the
    learner."""

    def __init__(
        self, recorder: MemoryRecorder, folder: Path, rank: int, num_iterations: int | None
    ) -> None:
        self._recorder = recorder
        self._folder = folder
        self._rank = rank
        self._num_left = num_iterations
        self._newest = 0
        self._has_run_out = False
        self._is_on = self._does(lambda: recorder.start(self._exhausted))

    def ended(self, iteration: int) -> None:
        """An iteration is over."""
        self._newest = iteration
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left == 0:
                self.close()

    def close(self) -> None:
        """Write the last snapshot, if it is not written; again does nothing."""
        if self._is_on:
            self._is_on = False
            self._write(f"iteration_{self._newest}")
            self._does(self._recorder.stop)

    def _exhausted(self) -> None:
        """The first time tells most: later ones may follow from it."""
        if self._is_on and not self._has_run_out:
            self._has_run_out = True
            self._write("oom")

    def _write(self, moment: str) -> None:
        path = self._folder / f"memory_rank_{self._rank}.{moment}.pickle"

        def write() -> None:
            make_folder(self._folder)
            beside = path.with_name(path.name + ".tmp")
            try:
                self._recorder.write(beside)
                narrow(beside)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)

        if self._does(write):
            logger.info("memory snapshot: %s", path)

    def _does(self, act: Callable[[], None]) -> bool:
        """Whether it was done."""
        try:
            act()
        except FAILURES as error:
            logger.warning("no memory snapshot (--record-memory-history): %s", error)
            return False
        return True
