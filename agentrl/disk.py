"""Files and folders that survive a power cut, and are no more open to others than they should be.

    a file that is replaced   write beside it -> sync -> rename -> sync of the folder
    a file that grows         create -> sync of the folder; write -> `sync_file`, again and again
    a folder                  make -> sync of the folder that it is made in
    a tree                    write -> `sync_tree` -> `rename`

What a function here says is durable is on the disk when it returns. On Linux that takes two things:
the bytes, and the name in the folder. Nobody else in agentrl calls fsync. What is made here is no
more open than the folder that it lies in: in a folder of mode 0700 files are 0600.
"""

import os
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

import msgspec

__all__ = [
    "create_file",
    "make_folder",
    "narrow",
    "narrow_tree",
    "read_json",
    "rename",
    "replace_file",
    "sync",
    "sync_file",
    "sync_tree",
    "write_file",
]

_FILE, _FOLDER = 0o666, 0o777
_T = TypeVar("_T")


def create_file(path: Path, mode: int = _FILE) -> BinaryIO:
    """A new file for writing, whose name is durable. FileExistsError when the name is taken."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & _openness(path.parent))
    sync(path.parent)
    return os.fdopen(handle, "wb")


def sync_file(file: IO[bytes]) -> None:
    """Make durable what was written to an open file."""
    file.flush()
    os.fdatasync(file.fileno())


def sync(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file whose bytes are durable; its name is when its folder is."""
    with open(path, "wb", opener=_opener) as file:
        file.write(data)
        sync_file(file)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data` at once: a reader, or the next program, finds the old file or the
    new one. Not `durable`, it does not wait for the disk, and a power cut may spoil the file.
    Raises OSError; then the file is as it was."""
    beside = path.with_name(path.name + ".tmp")
    if durable:
        write_file(beside, data)
        beside.replace(path)
        sync(path.parent)
        return
    with open(beside, "wb", opener=_opener) as file:
        file.write(data)
    beside.replace(path)


def read_json(path: Path, kind: type[_T]) -> _T | None:
    """What such a file says as JSON; None where it is not there, or says nothing of that kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.is_file() else None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


def rename(path: Path, name: Path) -> None:
    """Give a file or folder another name in the same folder, durably. After an OSError it has the
    old one."""
    assert path.parent == name.parent, f"{path} and {name} lie in different folders"
    path.rename(name)
    try:
        sync(name.parent)
    except OSError:
        name.rename(path)
        raise


def make_folder(path: Path, mode: int = _FOLDER, *, exist_ok: bool = True) -> None:
    """Make a folder, and those above it that are missing, durably."""
    if not path.parent.is_dir():
        make_folder(path.parent, mode)
    try:
        path.mkdir(mode & _openness(path.parent))
    except FileExistsError:
        if not exist_ok or not path.is_dir():
            raise
        return
    sync(path.parent)


def narrow(path: Path) -> None:
    """Make what other code wrote no more open than the folder that it lies in."""
    mode = path.stat().st_mode
    if mode & ~_openness(path.parent) & _FOLDER:
        path.chmod(mode & _openness(path.parent))


def narrow_tree(folder: Path) -> None:
    """The same for a folder and all that is in it."""
    for path in _tree(folder):
        narrow(path)


def sync_tree(folder: Path) -> None:
    """Make all that is in a folder durable, and no more open than the folder. Its own name is not
    made durable; links are passed over. Raises OSError."""
    paths = _tree(folder)
    for path in paths[1:]:
        narrow(path)
    for path in reversed(paths):
        sync(path)


def _tree(folder: Path) -> list[Path]:
    """A folder and what is in it, each folder before what it holds; files and folders alone."""
    found = [folder]
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        if path.is_dir():
            found += _tree(path)
        elif path.is_file():
            found.append(path)
    return found


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE & _openness(Path(path).parent))


def _openness(folder: Path) -> int:
    """What others may do in `folder`, and its owner everything."""
    return 0o700 | folder.stat().st_mode & _FOLDER
