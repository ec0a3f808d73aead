"""All ranks look together for the newest whole checkpoint.

    source     lists the checkpoints; of each, newest first, the manifest and the sizes
    all ranks  compare the contents of files with their digests, each a share of them

The verdict is that of `checkpoints.find_whole`: of what several ranks found, the finding of the
file that one process would have come to first counts. Ranks wait for each other in turns, so a
large checkpoint on a slow disk ends no collective by its deadline.
"""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from agentrl.errors import DataError
from agentrl.learner import checkpoints
from agentrl.learner.beside import in_a_thread, of_all_ranks
from agentrl.learner.checkpoints import Checkpoint
from agentrl.learner.collective_errors import Rank, by_source
from agentrl.learner.manifest import by_size, require_as_written

__all__ = ["Ranks", "newest_of_all", "share_of"]

log = logging.getLogger(__name__)


class Ranks(Rank, Protocol):
    """What is needed of a `TrainBackend` here."""

    def all_gather(self, value: Any) -> list[Any]: ...


class _Look(msgspec.Struct, frozen=True):
    """A checkpoint whose files have their sizes, or why it is none."""

    checkpoint: Checkpoint | None
    damage: str = ""


class _Finding(NamedTuple):
    """The first file of a share, by its place in order of size, that is not as it was written
    (`damage`) or cannot be read (`trouble`)."""

    place: int
    damage: str
    trouble: str


def newest_of_all(root: Path, ranks: Ranks) -> Checkpoint | None:
    """The newest checkpoint in `root` that verifies; None when `root` holds none. Collective; on
    every rank the same, and raises as `checkpoints.find_whole`. The source logs a damaged one that
    is passed over."""
    listed = by_source(
        ranks, lambda: list(reversed(checkpoints.iterations(root).items())), list[tuple[int, Path]]
    )
    damaged: list[str] = []
    for iteration, directory in listed:
        found = _whole(iteration, directory, ranks)
        if found.checkpoint is not None:
            return found.checkpoint
        damaged.append(found.damage)
        if ranks.is_source:
            log.warning("checkpoint skipped: %s", found.damage)
    checkpoints.refuse_all_damaged(root, damaged)
    return None


def share_of(names: Sequence[str], rank: int, num_ranks: int) -> list[tuple[int, str]]:
    """Which of `names` a rank reads, each with its place among them."""
    return list(enumerate(names))[rank::num_ranks]


def _whole(iteration: int, directory: Path, ranks: Ranks) -> _Look:
    look = by_source(ranks, lambda: _sized(iteration, directory), _Look)
    if look.checkpoint is None:
        return look
    rank, num_ranks = _place_among(ranks)
    names = by_size(look.checkpoint.manifest)
    share = share_of(names, rank, num_ranks)
    checkpoint = look.checkpoint
    own = in_a_thread("checkpoint", lambda: _first_wrong(checkpoint, share))
    found = [_Finding(*each) for each in of_all_ranks(own, ranks.all_gather) if each is not None]
    if not found:
        return look
    first = min(found)
    with checkpoints.reading(directory):
        if first.trouble:
            raise OSError(first.trouble)
    return _Look(None, first.damage)


def _sized(iteration: int, directory: Path) -> _Look:
    try:
        with checkpoints.reading(directory):
            return _Look(checkpoints.complete(iteration, directory))
    except DataError as error:
        return _Look(None, str(error))


def _first_wrong(found: Checkpoint, share: Sequence[tuple[int, str]]) -> _Finding | None:
    for place, name in share:
        try:
            require_as_written(found.directory, name, found.manifest.files[name])
        except DataError as error:
            return _Finding(place, str(error), "")
        except OSError as error:
            return _Finding(place, "", str(error))
    return None


def _place_among(ranks: Ranks) -> tuple[int, int]:
    """The number of this rank, and how many there are."""
    own = secrets.token_hex(8)
    everyone = ranks.all_gather(own)
    return everyone.index(own), len(everyone)
