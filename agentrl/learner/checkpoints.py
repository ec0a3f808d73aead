"""Checkpoint directories: each one whole and verified, or not there at all.

    ROOT/.iteration_0000012.*   being written, set aside or being removed; never read
    ROOT/iteration_0000012/     whole: state/..., and manifest.json that names every file

    PARTIAL (`create`) -> WHOLE (`seal`: all is fsynced, then one rename) -> SET ASIDE | REMOVED

The newest is found by looking, so there is no pointer that can lie; and what is found is verified
before it is believed. Nothing here is collective: one process works on a root.
"""

import logging
import math
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentrl import disk
from agentrl.errors import ConfigError, DataError, InfrastructureError
from agentrl.learner.manifest import FileFacts, Manifest, describe, read_sized, read_verified

__all__ = [
    "DIGESTED_BYTES",
    "STATE",
    "Checkpoint",
    "complete",
    "create",
    "discard",
    "find_whole",
    "iterations",
    "keep",
    "newest_valid",
    "reading",
    "refuse_all_damaged",
    "require_covered",
    "seal",
    "set_aside_after",
    "sweep",
]

log = logging.getLogger(__name__)

#: Bytes of a checkpoint whose contents are compared before anything starts: a second's reading. The
#: learner compares all.
DIGESTED_BYTES = 256 << 20
#: The folder in a checkpoint that the backend fills.
STATE = "state"
_MAX_TOLD = 4
_NAME = re.compile(r"iteration_(\d{7,})")


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was whole when it was last looked at."""

    directory: Path
    manifest: Manifest

    @property
    def iteration(self) -> int:
        """The last lease that its weights were trained on."""
        return self.manifest.iteration

    @property
    def version(self) -> int:
        """The newest version that was published when it was written."""
        return self.manifest.version

    @property
    def recipe(self) -> int:
        """Of the iterations since that version."""
        return self.manifest.recipe

    @property
    def state(self) -> Path:
        """What the backend wrote."""
        return self.directory / STATE


def require_covered(root: Path, newest: int, retired: int) -> None:
    """Raise ConfigError where the newest checkpoint (0: none) is older than what the buffer has let
    go: that can be trained by nobody again."""
    if retired > newest:
        has = f"none newer than iteration {newest} that is whole" if newest else "no checkpoint"
        there = [path for iteration, path in iterations(root).items() if iteration >= retired]
        advice = (
            f"{there[-1].name} is there, and damaged: bring its files back from a copy"
            if there
            else "Name the folder that the run saved to with --save"
        )
        raise ConfigError(
            f"--save {root} has {has}, and this run's leases up to {retired} are retired: their"
            f" trajectories are gone, only a checkpoint of iteration {retired} or later goes on. "
            + advice
        )


def iterations(root: Path) -> dict[int, Path]:
    """Directories that bear a checkpoint's name, oldest first, or `root` alone if it bears one;
    nothing is verified."""
    if not root.is_dir():
        return {}
    if match := _NAME.fullmatch(root.name):
        return {int(match[1]): root}
    named = ((_NAME.fullmatch(path.name), path) for path in root.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def newest_valid(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; None when `root` holds none. Raises as `find_whole`; a
    damaged one that is passed over is logged."""
    found, damaged = find_whole(root)
    for why in damaged:
        log.warning("checkpoint skipped: %s", why)
    return found


def find_whole(root: Path, most_bytes: float = math.inf) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies (None when `root` holds none), and what is wrong with
    each newer one. `most_bytes` of each are compared with their digests, as `read_verified` says.

    DataError when there are some and all are damaged: to begin from nothing then is for a person to
    say. InfrastructureError for one that cannot be read: it may be whole, and to pass it over would
    be to give it up.
    """
    damaged: list[str] = []
    for iteration, directory in reversed(iterations(root).items()):
        try:
            with reading(directory):
                manifest = read_verified(directory, most_bytes)
                return _numbered(iteration, directory, manifest), damaged
        except DataError as error:
            damaged.append(str(error))
    refuse_all_damaged(root, damaged)
    return None, damaged


def complete(iteration: int, directory: Path) -> Checkpoint:
    """The checkpoint of that iteration, whose files have their sizes; nothing is said of their
    contents. Raises as `read_verified`."""
    return _numbered(iteration, directory, read_sized(directory))


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """Raises InfrastructureError for what of a checkpoint cannot be read."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"checkpoint {directory} cannot be read: {error}; nothing says that it is damaged,"
            " so none older is taken: mend the disk, or move it away"
        ) from error


def refuse_all_damaged(root: Path, damaged: Sequence[str]) -> None:
    """Raise DataError where all checkpoints in `root` are `damaged`, if there are some."""
    if damaged:
        shown = "".join(f"\n    {why}" for why in damaged[:_MAX_TOLD])
        raise DataError(
            f"none of the {len(damaged)} checkpoints in {root} is whole: bring one back from a"
            f" copy, or start a run that does not continue from there:{shown}"
        )


def _numbered(iteration: int, directory: Path, manifest: Manifest) -> Checkpoint:
    if manifest.iteration != iteration:
        raise DataError(f"{directory}: its manifest is of iteration {manifest.iteration}")
    return Checkpoint(directory, manifest)


def create(root: Path, iteration: int) -> Path:
    """A new directory to write a checkpoint into, with an empty `state` in it."""
    partial = _hidden(_directory(root, iteration), "partial")
    disk.make_folder(partial / STATE)
    return partial


def seal(
    partial: Path,
    *,
    iteration: int,
    version: int,
    run_id: str,
    recipe: int = 0,
    run_path: str = "",
    written: Mapping[str, FileFacts] | None = None,
) -> Checkpoint:
    """Describe what was written, make it durable and give it its name. `recipe`, `run_path`
    and `written`: as `describe` wants them.

    OSError leaves it without one. DataError when the name is taken.
    """
    directory = _directory(partial.parent, iteration)
    if directory.exists():
        raise DataError(f"{directory} is there already; a checkpoint is never replaced")
    manifest = describe(
        partial,
        iteration=iteration,
        version=version,
        run_id=run_id,
        recipe=recipe,
        run_path=run_path,
        written=written,
    )
    disk.rename(partial, directory)
    return Checkpoint(directory, manifest)


def discard(partial: Path) -> None:
    """Remove what was not sealed. What cannot be removed is logged; `sweep` tries again."""
    shutil.rmtree(partial, onerror=_log_failure)


def keep(root: Path, num: int, retain: int = 0) -> None:
    """Remove all but the `num` newest checkpoints and those of every `retain` iterations (0: none),
    and what interrupted writes left behind. What cannot be removed is logged."""
    if num < 1:
        raise ValueError(f"{num} checkpoints cannot be kept; at least 1")
    for iteration, directory in list(iterations(root).items())[:-num]:
        if retain and iteration % retain == 0:
            continue
        try:
            directory.rename(_hidden(directory, "removed"))
        except OSError as error:
            log.warning("checkpoint %s could not be removed: %s", directory, error)
    sweep(root)


def sweep(root: Path) -> None:
    """Remove what interrupted writes and removals left behind, and what was set aside."""
    for path in root.glob(".iteration_*"):
        discard(path)


def set_aside_after(root: Path, iteration: int) -> None:
    """Take checkpoints newer than `iteration` out of sight, durably. The run goes on without them:
    should one become readable again, it is not of the run's lineage. The next `keep` removes
    them."""
    newer = [path for number, path in iterations(root).items() if number > iteration]
    for path in newer:
        log.warning("checkpoint %s is set aside: the run goes on from %d", path, iteration)
        path.rename(_hidden(path, "aside"))
    if newer:
        disk.sync(root)


def _directory(root: Path, iteration: int) -> Path:
    return root / f"iteration_{iteration:07d}"


def _hidden(directory: Path, why: str) -> Path:
    return directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:12]}.{why}")


def _log_failure(_function: object, path: str, error: object) -> None:
    log.warning("%s could not be removed: %s", path, error)
