"""Learner ranks that have nothing but a state to save, and what they leave in a directory."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.checkpoints import Checkpoint, newest_valid
from agentrl.learner.manifest import FileFacts
from tests.collectives import Thread, Threads


class Backend(Thread):
    """A state of `weights` bytes in a file of each rank; `fails` is raised by each rank instead.
    `may_write`: a copy is written when it is set."""

    def __init__(self, threads: Threads | None = None, rank: int = 0) -> None:
        super().__init__(threads or Threads(1), rank)
        self.weights = b""
        self.moments = b"moments" * 100
        self.fails: Exception | None = None
        self.may_write = threading.Event()

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        self.write(directory, self.weights)
        self.gather(None)
        return {}

    def write(self, directory: Path, weights: bytes) -> None:
        if self.fails is not None:
            raise self.fails
        (directory / f"rank-{self.data_parallel_rank}").write_bytes(weights)
        (directory / "more").mkdir(exist_ok=True)
        (directory / "more" / f"rank-{self.data_parallel_rank}").write_bytes(self.moments)

    def copy_state(self) -> "Copy":
        return Copy(self, self.weights)

    def load_state(self, directory: Path) -> None:
        self.weights = (directory / f"rank-{self.data_parallel_rank}").read_bytes()


class Copy:
    """What a backend had when it was made."""

    def __init__(self, backend: Backend, weights: bytes) -> None:
        self._backend = backend
        self._weights = weights

    def write(self, directory: Path) -> Any:
        assert self._backend.may_write.wait(300)
        self._backend.write(directory, self._weights)
        return len(self._weights)

    def join(self, directory: Path, parts: list[Any]) -> Mapping[str, FileFacts]:
        assert parts == [(directory / f"rank-{i}").stat().st_size for i in range(len(parts))]
        return {}


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
