"""The manifest of a checkpoint: what the directory holds, file by file, and proof of it.

A directory is whole when manifest.json matches its own checksum and every file that it names is
there with the size and the xxh3 that it says. Anything else is refused in words that name the
directory and the file. Files that it does not name mean nothing.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
import xxhash

from agentrl import disk
from agentrl.config.places import MANIFEST
from agentrl.errors import DataError

__all__ = [
    "FORMAT",
    "FileDigest",
    "FileFacts",
    "Manifest",
    "by_size",
    "describe",
    "read_sized",
    "read_verified",
    "require_as_written",
]

#: Layout of the directory and of its manifest. Another number is refused.
FORMAT = 1

_BLOCK_BYTES = 1 << 22


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size in bytes and xxh3_64 (hexadecimal) of a file."""

    num_bytes: int
    xxh3_64: str


class FileDigest:
    """Counts and digests the bytes of a file as somebody reads or writes them."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_64()
        self._num_bytes = 0

    def add(self, data: bytes | memoryview) -> None:
        """The bytes that come next in the file."""
        self._digest.update(data)
        self._num_bytes += len(data)

    def facts(self) -> FileFacts:
        """Of all that was added."""
        return FileFacts(self._num_bytes, self._digest.hexdigest())


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds. A field that is not known here means nothing.

    iteration: the last lease that its weights were trained on. version: the newest version that was
    published when it was written. recipe: of the iterations since that one (`VersionRow`).
    run_path: where the run's directory was then (empty: not said). files: by path relative to the
    directory, the manifest apart.
    """

    iteration: int
    version: int
    run_id: str
    recipe: int = 0
    run_path: str = ""
    files: dict[str, FileFacts]


class _Header(msgspec.Struct, frozen=True):
    format: int


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """manifest.json. The checksum covers the bytes of `manifest` as they stand in the file."""

    format: int
    xxh3_64: str
    manifest: msgspec.Raw


def describe(
    directory: Path,
    *,
    iteration: int,
    version: int,
    run_id: str,
    recipe: int = 0,
    run_path: str = "",
    written: Mapping[str, FileFacts] | None = None,
) -> Manifest:
    """Write the manifest of `directory` as it is now, and make all of it durable. `written`: files
    whose facts are known of who wrote them, by relative path; the others are read. DataError for
    one that is not there as it was written."""
    files, known = _files(directory), written or {}
    for name, facts in known.items():
        size = files[name].stat().st_size if name in files else 0
        if size != facts.num_bytes:
            raise DataError(f"{directory}: {name} has {size} of {facts.num_bytes} written bytes")
    manifest = Manifest(
        iteration=iteration,
        version=version,
        run_id=run_id,
        recipe=recipe,
        run_path=run_path,
        files={name: known.get(name) or _facts(path) for name, path in files.items()},
    )
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    envelope = _Envelope(FORMAT, xxhash.xxh3_64_hexdigest(body), msgspec.Raw(body))
    disk.sync_tree(directory)
    disk.write_file(directory / MANIFEST, msgspec.json.encode(envelope))
    disk.sync(directory)
    return manifest


def read_verified(directory: Path, most_bytes: float = math.inf) -> Manifest:
    """The manifest of a directory that is whole. DataError says what is not; OSError when something
    cannot be read, which says nothing of what it holds. The contents of files are compared with
    their digests as long as they have `most_bytes` together, the smallest first; of the others the
    sizes are compared."""
    manifest = read_sized(directory)
    for name in by_size(manifest):
        most_bytes -= manifest.files[name].num_bytes
        if most_bytes < 0:
            break
        require_as_written(directory, name, manifest.files[name])
    return manifest


def read_sized(directory: Path) -> Manifest:
    """The manifest of a directory whose files are there with their sizes. Raises as
    `read_verified`."""
    manifest = _read(directory)
    present = _files(directory)
    for name, wanted in manifest.files.items():
        if name not in present:
            raise DataError(f"{directory}: {name} is missing")
        size = present[name].stat().st_size
        if size != wanted.num_bytes:
            raise DataError(f"{directory}: {name} has {size} bytes, not {wanted.num_bytes}")
    return manifest


def by_size(manifest: Manifest) -> list[str]:
    """Its files, the smallest first."""
    return sorted(manifest.files, key=lambda name: manifest.files[name].num_bytes)


def require_as_written(directory: Path, name: str, wanted: FileFacts) -> None:
    """Compare the contents of a file with its digest; raises as `read_verified`."""
    found = _facts(directory / name)
    if found != wanted:
        raise DataError(
            f"{directory}: {name} is damaged: its xxh3_64 is {found.xxh3_64},"
            f" {MANIFEST} says {wanted.xxh3_64}"
        )


def _read(directory: Path) -> Manifest:
    try:
        data = (directory / MANIFEST).read_bytes()
        found = msgspec.json.decode(data, type=_Header).format
        if found != FORMAT:
            raise DataError(
                f"{directory}: {MANIFEST} is of format {found}, this program reads format {FORMAT}"
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.manifest)
        if xxhash.xxh3_64_hexdigest(body) != envelope.xxh3_64:
            raise DataError(f"{directory}: {MANIFEST} does not match its own checksum")
        return msgspec.json.decode(body, type=Manifest)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise DataError(f"{directory}: {MANIFEST} is missing") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{directory}: {MANIFEST} cannot be read: {error}") from None


def _files(directory: Path) -> dict[str, Path]:
    """Regular files by relative path, the manifest apart; links are not followed. OSError for a
    folder that cannot be read."""
    walk = os.walk(directory, onerror=_raise)
    paths = sorted(Path(folder, name) for folder, _, names in walk for name in names)
    found = {
        path.relative_to(directory).as_posix(): path
        for path in paths
        if path.is_file() and not path.is_symlink()
    }
    found.pop(MANIFEST, None)
    return found


def _raise(error: OSError) -> NoReturn:
    raise error


def _facts(path: Path) -> FileFacts:
    digest = FileDigest()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.add(block)
    return digest.facts()
