"""Folders that are replaced as wholes, and what a writer that was killed has left beside them.

    .NAME.0123456789ab       the new one while it is written
    .NAME.0123456789ab.old   the old one while the new one takes the name

A writer that fails leaves the old folder as it was. One that is killed may leave both of these:
`mend`, which the next writer and the next start of a learner call, puts the old one back where
nothing has the name, and removes what is left over. One writer writes a folder at a time.
"""

import logging
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl import disk

__all__ = ["mend", "replaced"]

log = logging.getLogger(__name__)

_LEFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}(?P<is_old>\.old)?")


@contextmanager
def replaced(directory: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `directory`, durably, when the block
    ends. Where that fails, or the block does, `directory` is as it was."""
    if directory.parent.is_dir():
        mend(directory.parent, lambda name: name == directory.name)
    partial = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:12]}")
    disk.make_folder(partial, exist_ok=False)
    try:
        yield partial
        disk.sync_tree(partial)
        _replace(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def mend(folder: Path, is_meant: Callable[[str], bool]) -> None:
    """Put back and remove what killed writers have left in `folder`, of the names that are meant.
    What cannot be removed stays. Raises OSError for one that cannot be put back."""
    found = [(_LEFT.fullmatch(path.name), path) for path in folder.glob(".*")]
    left = [(match["name"], match["is_old"], path) for match, path in found if match]
    for name, is_old, path in sorted(left, key=lambda each: -each[2].stat().st_mtime):
        if not is_meant(name):
            continue
        directory = folder / name
        if is_old and not directory.exists():
            disk.rename(path, directory)
            log.warning("%s is back: what was to replace it was never whole", directory)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _replace(partial: Path, directory: Path) -> None:
    """Rename `partial` to `directory`; what stood there is moved aside first and then removed."""
    aside = partial.with_name(partial.name + ".old")
    if directory.exists():
        directory.rename(aside)
    try:
        disk.rename(partial, directory)
    except OSError:
        if aside.exists():
            aside.rename(directory)
        raise
    shutil.rmtree(aside, ignore_errors=True)
