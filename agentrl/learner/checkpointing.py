"""All ranks write a checkpoint together, or find and load one; the source rank decides.

    save:     create (source) -> save_state (all) -> seal, keep (source)
    restore:  newest valid (source) -> load_state (all)

Between the steps the source's word is broadcast, its failure too, so every call ends alike on all
ranks and nobody waits for a rank that has given up. On several nodes the root must lie on a file
system that all of them share.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from agentrl.errors import ConfigError, InfrastructureError
from agentrl.learner import checkpoints
from agentrl.learner.agreement import Rank, by_source
from agentrl.learner.checkpoints import STATE, Checkpoint
from agentrl.learner.manifest import FileFacts

__all__ = ["CheckpointWriter", "Stateful", "restore_newest"]

log = logging.getLogger(__name__)


class Stateful(Rank, Protocol):
    """What is needed of a `TrainBackend` here."""

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]: ...

    def load_state(self, directory: Path) -> None: ...


def restore_newest(root: Path, backend: Stateful) -> Checkpoint | None:
    """Load the newest checkpoint in `root` that verifies; None when `root` has none. Collective.

    Nothing changes on disk. Raises DataError when all are damaged, and ConfigError when the newest
    whole one is of another model; the run then cannot go on.
    """
    found = by_source(backend, lambda: checkpoints.newest_valid(root), Checkpoint | None)
    if found is not None:
        backend.load_state(found.state)
        log.info("continuing from %s, version %d", found.directory, found.version)
    return found


class CheckpointWriter:
    """Writes the checkpoints of one run into `root` and keeps the `keep` newest, and for good those
    of every `retain` iterations (0: none). `files`: what goes in beside the backend's state, by
    file name.

    NEW -> OPEN (`begin`) -> OPEN (`save`, again and again)
    """

    def __init__(
        self,
        root: Path,
        backend: Stateful,
        *,
        run_id: str,
        keep: int = 2,
        retain: int = 0,
        files: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        if keep < 1:
            raise ValueError(f"{keep} checkpoints cannot be kept; at least 1")
        self._root = root
        self._backend = backend
        self._run_id = run_id
        self._keep = keep
        self._retain = retain
        self._files = files
        self._newest: Checkpoint | None = None

    def begin(self, after: Checkpoint | None) -> None:
        """Make `root` ready for a run that continues from `after`, one of its own, or from nothing.
        Collective.

        What saves that were cut off have left behind is removed: it takes the room of the next.
        What is newer than `after` was found damaged, and is set aside. ConfigError when `root` has
        checkpoints that this run does not continue.
        """
        self._newest = after
        by_source(self._backend, self._prepare, None)

    def save(self, iteration: int, version: int) -> Checkpoint:
        """Write the state after `iteration`, when `version` is the newest published. Collective.

        On return it is durable. An iteration is written once; asked again, the one that is there is
        the answer. Raises on all ranks what failed on any, InfrastructureError for a disk: then
        the checkpoints from before are as they were.
        """
        if self._newest is not None and self._newest.iteration == iteration:
            return self._newest
        try:
            self._newest = self._write(iteration, version)
        except InfrastructureError as error:
            raise InfrastructureError(
                f"no checkpoint of iteration {iteration} in {self._root}: {error}; those from"
                " before are as they were"
            ) from error
        if self._backend.is_source:
            checkpoints.keep(self._root, self._keep, self._retain)
        return self._newest

    def _write(self, iteration: int, version: int) -> Checkpoint:
        partial = by_source(self._backend, lambda: checkpoints.create(self._root, iteration), Path)
        try:
            facts = self._backend.save_state(partial / STATE)
            written = {f"{STATE}/{name}": each for name, each in facts.items()}
            return by_source(
                self._backend, lambda: self._seal(partial, iteration, version, written), Checkpoint
            )
        finally:
            if self._backend.is_source and partial.exists():
                checkpoints.discard(partial)

    def _prepare(self) -> None:
        present = checkpoints.iterations(self._root)
        if self._newest is None and present:
            raise ConfigError(
                f"{self._root} holds {len(present)} checkpoints that this run does not continue,"
                f" the newest of iteration {max(present)}: continue from there, or save elsewhere"
            )
        checkpoints.sweep(self._root)
        if self._newest is not None:
            checkpoints.set_aside_after(self._root, self._newest.iteration)

    def _seal(
        self, partial: Path, iteration: int, version: int, written: Mapping[str, FileFacts]
    ) -> Checkpoint:
        for name, data in self._files().items():
            (partial / name).write_bytes(data)
        return checkpoints.seal(
            partial, iteration=iteration, version=version, run_id=self._run_id, written=written
        )
