"""A whole model on an engine's own disk, kept at the newest push.

    pull(folder of a whole push)   the folder is copied beside it and takes its place
    pull(folder of a delta)        the files are patched where they are, tensor by tensor, and each
                                   is compared with its checksum

`push.json` in the copy says what it holds. It is away while files are patched: a copy of which half
is patched holds nothing, and takes the next whole push. Engines of one host may share a copy: one
of them pulls, the others find it done. Versions count within a stream: a whole push of one that
began later replaces the copy whatever its version is, and one of an earlier stream is refused, as
is an older version of the same one. Both come from calls that were late.
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from agentrl import disk
from agentrl.config.weights import Place, read_places
from agentrl.errors import DataError
from agentrl.serving.deltas import Bytes, checksum, decode
from agentrl.serving.push_files import DELTA, PUSH, Delta, PushManifest, read_push, write_manifest

__all__ = ["LacksBaseError", "pull"]


class LacksBaseError(DataError):
    """The copy does not hold the version that a delta builds on."""


def pull(folder: Path, copy: Path) -> None:
    """Bring `copy` to what `folder` holds. Raises LacksBaseError, and DataError or ConfigError for
    files that are not what they should be; the copy then holds nothing."""
    push = read_push(folder)
    disk.make_folder(copy.parent)
    with _alone(copy.with_name(f".{copy.name}.lock")):
        try:
            held = read_push(copy)
        except DataError:
            held = None
        if held is not None and (held.stream, held.version) == (push.stream, push.version):
            return
        if held is not None:
            _check_not_late(held, copy, push, folder)
        if push.delta is None:
            _replace(folder, copy)
            return
        if held is None or (held.stream, held.version) != (push.stream, push.delta.base):
            raise LacksBaseError(
                f"{copy} holds {_said(held, push)}, and {folder} builds on version "
                f"{push.delta.base}"
            )
        (copy / PUSH).unlink()
        disk.sync(copy)
        _patch(folder / DELTA, push.delta, copy)
        write_manifest(copy, msgspec.structs.replace(push, delta=None))


def _check_not_late(held: PushManifest, copy: Path, push: PushManifest, folder: Path) -> None:
    """A call that came late does not take the copy back."""
    has = f"{copy} holds version {held.version}"
    if held.stream == push.stream and held.version > push.version:
        raise DataError(f"{has} already, and {folder} is older")
    if held.stream != push.stream and held.began_ns > push.began_ns:
        raise DataError(
            f"{has} of a learner that began after the one which wrote {folder}; if that is not so, "
            f"a clock was wrong then: remove {copy} on this host"
        )


def _said(held: PushManifest | None, push: PushManifest) -> str:
    if held is None:
        return "nothing"
    of = "" if held.stream == push.stream else " of another stream"
    return f"version {held.version}{of}"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Nobody else on this host is here."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(folder: Path, copy: Path) -> None:
    for partial in copy.parent.glob(f".{copy.name}.partial-*"):  # of a process that was killed
        shutil.rmtree(partial, ignore_errors=True)
    partial = copy.with_name(f".{copy.name}.partial-{uuid.uuid4().hex[:12]}")
    try:
        shutil.copytree(folder, partial)
        disk.sync_tree(partial)
        if copy.exists():
            shutil.rmtree(copy)
        partial.rename(copy)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _patch(changes: Path, delta: Delta, copy: Path) -> None:
    places = read_places(copy)
    with _opened(changes) as found:
        if set(found.keys()) != delta.checksums.keys():
            raise DataError(f"{changes} does not have the tensors that {PUSH} names")
        for name in found.keys():  # noqa: SIM118
            if name not in places:
                raise DataError(f"{changes} changes {name}, which {copy} does not have")
            _patch_one(name, places[name], found.get_tensor(name).tobytes(), delta)
    for path in {place.path for place in places.values()}:
        disk.sync(path)


@contextmanager
def _opened(changes: Path) -> Iterator[Any]:
    try:
        with safe_open(changes, "numpy") as found:
            yield found
    except SafetensorError as error:
        raise DataError(f"{changes} cannot be read: {error}") from error


def _patch_one(name: str, place: Place, change: bytes, delta: Delta) -> None:
    with place.path.open("r+b") as file:
        new = decode(_read(file, place), change, delta.encoding)
        if checksum(new, delta.checksum) != delta.checksums[name]:
            raise DataError(
                f"{name} of {place.path} is not what was pushed: its {delta.checksum} differs"
            )
        file.seek(place.start)
        file.write(new.data)


def _read(file: BinaryIO, place: Place) -> Bytes:
    file.seek(place.start)
    data = file.read(place.num_bytes)
    if len(data) != place.num_bytes:
        raise DataError(f"{place.path} ends before byte {place.start + place.num_bytes}")
    return np.frombuffer(data, np.uint8)
