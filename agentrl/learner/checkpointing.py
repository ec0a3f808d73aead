"""All ranks write a checkpoint together, or find and load one; the source rank decides.

    save:     create (source) -> save_state (all) -> seal, keep (source)
    beside    begin_save: create (source) -> copy_state (all) -> a thread of each rank writes
    training: end_save: all have written? -> join (all) -> seal, keep (source)
    restore:  newest valid (all, each reads a share) -> load_state (all)

Between the steps the source's word is broadcast, its failure too, so every call ends alike on all
ranks and nobody waits for a rank that has given up. On several nodes the root must lie on a file
system that all of them share.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from agentrl.errors import ConfigError, InfrastructureError
from agentrl.learner import checkpoints
from agentrl.learner.beside import in_a_thread, of_all_ranks
from agentrl.learner.checkpoints import STATE, Checkpoint
from agentrl.learner.collective_errors import by_source, together
from agentrl.learner.finding import Ranks, newest_of_all
from agentrl.learner.manifest import FileFacts

__all__ = ["CheckpointWriter", "CopiesState", "StateCopy", "Stateful", "restore_newest"]

log = logging.getLogger(__name__)


class Stateful(Ranks, Protocol):
    """What is needed of a `TrainBackend` here."""

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]: ...

    def load_state(self, directory: Path) -> None: ...


class StateCopy(Protocol):
    """What `save_state` would have written when it was made, while the state changes."""

    def write(self, directory: Path) -> Any:
        """Write this rank's files into `directory`, durably: in any thread, without a word to the
        other ranks. Returns what `join` wants of it, as builtins."""
        ...

    def join(self, directory: Path, parts: list[Any]) -> Mapping[str, FileFacts]:
        """All ranks have written, which gave `parts`: make a whole of it, durably. Collective;
        returns what `save_state` does."""
        ...


@runtime_checkable
class CopiesState(Stateful, Protocol):
    """A backend whose checkpoints can be written beside training has this too."""

    def copy_state(self) -> StateCopy:
        """A copy of this rank's state in the host's memory. Not collective."""
        ...


class _Behind(NamedTuple):
    """A checkpoint that is being written. `part`: of this rank."""

    partial: Path
    iteration: int
    version: int
    recipe: int
    copy: StateCopy
    part: Future[Any]


def restore_newest(root: Path, backend: Stateful) -> Checkpoint | None:
    """Load the newest checkpoint in `root` that verifies; None when `root` has none. Collective.

    Nothing changes on disk. Raises DataError when all are damaged, and ConfigError when the newest
    whole one is of another model; the run then cannot go on.
    """
    found = newest_of_all(root, backend)
    if found is not None:
        backend.load_state(found.state)
        log.info("continuing from %s, version %d", found.directory, found.version)
    return found


class CheckpointWriter:
    """Writes the checkpoints of one run into `root` and keeps the `keep` newest, and for good those
    of every `retain` iterations (0: none). `run_path`: where the run's directory is. `files`: what
    goes in beside the backend's state, by file name.

    NEW -> OPEN (`begin`) -> OPEN (`save`, again and again)
                             OPEN -> WRITING (`begin_save`) -> OPEN (`end_save` that says True)
    """

    def __init__(
        self,
        root: Path,
        backend: Stateful,
        *,
        run_id: str,
        run_path: str = "",
        keep: int = 2,
        retain: int = 0,
        files: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        if keep < 1:
            raise ValueError(f"{keep} checkpoints cannot be kept; at least 1")
        self._root = root
        self._backend = backend
        self._run_id, self._run_path = run_id, run_path
        self._keep = keep
        self._retain = retain
        self._files = files
        self._newest: Checkpoint | None = None
        self._behind: _Behind | None = None

    def begin(self, after: Checkpoint | None) -> None:
        """Make `root` ready for a run that continues from `after`, one of its own, or from nothing.
        Collective.

        What saves that were cut off have left behind is removed: it takes the room of the next.
        What is newer than `after` was found damaged, and is set aside. ConfigError when `root` has
        checkpoints that this run does not continue.
        """
        self._newest = after
        by_source(self._backend, self._prepare, None)

    def save(self, iteration: int, version: int, recipe: int = 0) -> Checkpoint:
        """Write the state after `iteration`, when `version` is the newest published and what was
        trained since is of `recipe`. Collective.

        On return it is durable. An iteration is written once; asked again, the one that is there is
        the answer. Raises on all ranks what failed on any, InfrastructureError for a disk: then
        the checkpoints from before are as they were.
        """
        if self._newest is not None and self._newest.iteration == iteration:
            return self._newest
        with self._telling(iteration):
            partial = by_source(self._backend, lambda: self._create(iteration), Path)
            with self._gone_if_it_fails(partial):
                facts = self._backend.save_state(partial / STATE)
                return self._seal(partial, iteration, version, recipe, facts)

    def begin_save(self, iteration: int, version: int, recipe: int = 0) -> None:
        """Copy the state after `iteration`, as `save` would write it, and begin to
        write it beside what follows. Collective; raises as `save`, and ConfigError for a backend
        that cannot. An iteration is written once. The one before has ended (`end_save`)."""
        assert self._behind is None
        if self._newest is not None and self._newest.iteration == iteration:
            return
        backend = self._copying()
        copies: list[StateCopy] = []
        with self._telling(iteration):
            partial = by_source(backend, lambda: self._create(iteration), Path)
            with self._gone_if_it_fails(partial):
                together(lambda: copies.append(backend.copy_state()), backend.all_gather)
        [copy] = copies
        part = in_a_thread("checkpoint", lambda: copy.write(partial / STATE))
        self._behind = _Behind(partial, iteration, version, recipe, copy, part)

    def end_save(self, *, waits: bool) -> bool:
        """Whether nothing is being written any more; with `waits` it is True. What was begun is
        durable then. Collective; raises as `save`."""
        if self._behind is None:
            return True
        behind, backend = self._behind, self._copying()

        def look() -> bool:
            is_done = behind.part.done()
            if is_done:
                behind.part.result()  # raises what writing has failed of
            return waits or is_done

        with self._telling(behind.iteration), self._gone_if_it_fails(behind.partial):
            if not all(together(look, backend.all_gather)):
                return False
            parts = of_all_ranks(behind.part, backend.all_gather)
            facts = behind.copy.join(behind.partial / STATE, parts)
            self._seal(behind.partial, behind.iteration, behind.version, behind.recipe, facts)
        self._behind = None
        return True

    def _copying(self) -> CopiesState:
        if not isinstance(self._backend, CopiesState):
            raise ConfigError(
                f"--async-save: {type(self._backend).__name__} has no `copy_state`, so it writes no"
                " checkpoint beside training; leave the flag out"
            )
        return self._backend

    @contextmanager
    def _telling(self, iteration: int) -> Iterator[None]:
        try:
            yield
        except InfrastructureError as error:
            raise InfrastructureError(
                f"no checkpoint of iteration {iteration} in {self._root}: {error}; those from"
                " before are as they were"
            ) from error

    @contextmanager
    def _gone_if_it_fails(self, partial: Path) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._backend.is_source and partial.exists():
                checkpoints.discard(partial)
            raise

    def _create(self, iteration: int) -> Path:
        partial = checkpoints.create(self._root, iteration)
        for name, data in self._files().items():
            (partial / name).write_bytes(data)
        return partial

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
        self,
        partial: Path,
        iteration: int,
        version: int,
        recipe: int,
        facts: Mapping[str, FileFacts],
    ) -> Checkpoint:
        """Give it its name, and remove those that are too many. Collective."""
        written = {f"{STATE}/{name}": each for name, each in facts.items()}

        def seal() -> Checkpoint:
            return checkpoints.seal(
                partial,
                iteration=iteration,
                version=version,
                run_id=self._run_id,
                recipe=recipe,
                run_path=self._run_path,
                written=written,
            )

        self._newest = by_source(self._backend, seal, Checkpoint)
        if self._backend.is_source:
            checkpoints.keep(self._root, self._keep, self._retain)
        return self._newest
