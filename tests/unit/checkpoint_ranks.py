"""Learner ranks that have nothing but a state to save, and what they leave in a directory."""

import threading
from collections.abc import Mapping
from pathlib import Path

from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.checkpoints import Checkpoint, newest_valid
from agentrl.learner.manifest import FileFacts


class Ranks:
    """Collectives between the threads of several ranks."""

    def __init__(self, size: int) -> None:
        self.slots: list[bytes | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=300)


class Backend:
    """A state of `weights` bytes in a file of each rank; `fails` is raised by each rank instead."""

    def __init__(self, ranks: Ranks | None = None, rank: int = 0) -> None:
        self.is_source = rank == 0
        self.weights = b""
        self.moments = b"moments" * 100
        self.fails: Exception | None = None
        self._ranks = ranks or Ranks(1)
        self._rank = rank

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        if self.fails is not None:
            raise self.fails
        (directory / f"rank-{self._rank}").write_bytes(self.weights)
        (directory / "more").mkdir(exist_ok=True)
        (directory / "more" / f"rank-{self._rank}").write_bytes(self.moments)
        self._ranks.barrier.wait()
        return {}

    def load_state(self, directory: Path) -> None:
        self.weights = (directory / f"rank-{self._rank}").read_bytes()

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        self._ranks.slots[self._rank] = data
        self._ranks.barrier.wait()
        found = self._ranks.slots[0]
        self._ranks.barrier.wait()
        assert found is not None
        return found


def writer(
    root: Path, backend: Backend, after: Checkpoint | None = None, run_id: str = "run"
) -> CheckpointWriter:
    opened = CheckpointWriter(root, backend, run_id=run_id)
    opened.begin(after)
    return opened


def saved(root: Path, *numbers: int, run_id: str = "run") -> Backend:
    """A backend that has saved these iterations, each with weights of its own."""
    backend = Backend()
    opened = writer(root, backend, run_id=run_id)
    for number in numbers:
        backend.weights = b"weights of %d" % number
        opened.save(number, version=10 * number)
    return backend


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def newest(root: Path) -> int:
    found = newest_valid(root)
    assert found is not None
    return found.iteration
