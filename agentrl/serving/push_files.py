"""A set of weights as a folder that engines read: `weight_v000012`.

    full     a Hugging Face model, and push.json
    delta    push.json, and delta.safetensors: of each tensor that changed since the push before,
             the change as compressed bytes (`deltas`)

`push.json` says which push it is and, of a delta, on which it builds. A stream is what one life of
a learner writes: versions of two streams do not build on each other, and when they began says
which is later (never before those whose pushes lie there). The reading side is
`local_copy`; the folder is whole when anyone is told of it.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from safetensors.torch import save

from agentrl import disk
from agentrl.errors import DataError
from agentrl.serving.deltas import Bytes, Checksum, Encoding, checksum, encode
from agentrl.serving.members import NamedTensors

__all__ = [
    "DELTA",
    "Delta",
    "PushFiles",
    "PushManifest",
    "PushSettings",
    "WrittenPush",
    "read_push",
    "write_manifest",
]

PUSH, DELTA = "push.json", "delta.safetensors"

#: Writes a Hugging Face model of the tensors into a folder that is not there yet.
WriteModel = Callable[[Path, NamedTensors], None]


class Delta(msgspec.Struct, frozen=True):
    """How `delta.safetensors` is to be read: `base` is the version that it builds on, `checksums`
    are those of the new bytes, by tensor."""

    base: int
    encoding: Encoding
    checksum: Checksum
    checksums: dict[str, str]


class PushManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`push.json`: a version of a stream; without `delta` the folder is a whole model. `began_ns`:
    when the stream began, since 1970."""

    stream: str
    version: int
    delta: Delta | None = None
    began_ns: int = 0


class WrittenPush(NamedTuple):
    """A folder, and how many bytes lie in it."""

    folder: Path
    num_bytes: int


def read_push(folder: Path) -> PushManifest:
    """DataError for a folder that is no push."""
    try:
        return msgspec.json.decode((folder / PUSH).read_bytes(), type=PushManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{folder} holds no weights of a push: {error}") from error


class PushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where pushes are written, and how.

    root       folder for the folders of pushes; it is made
    keeps      older pushes are left where they are
    encoding   of deltas; None: each push is whole. Otherwise the weights of the last push are kept
               in host memory
    checksum   of the new bytes of each tensor of a delta
    """

    root: Path
    keeps: bool = False
    encoding: Encoding | None = None
    checksum: Checksum = "xxh3-128"


def write_manifest(folder: Path, push: PushManifest) -> None:
    """Say durably which push `folder` holds. Its files are there by then."""
    disk.write_file(folder / PUSH, msgspec.json.encode(push))


class PushFiles:
    """Writes each push into a folder of its own. `write_model` writes a Hugging Face model."""

    def __init__(self, settings: PushSettings, write_model: WriteModel) -> None:
        self._root = settings.root
        self._write_model = write_model
        self._keeps = settings.keeps
        self._encoding = settings.encoding
        self._checksum = settings.checksum
        self._stream = uuid.uuid4().hex[:12]
        self._version = 0
        self._last: dict[str, torch.Tensor] = {}
        disk.make_folder(self._root)
        self._began_ns = max([time.time_ns(), *(each + 1 for each in _begun(self._root))])
        for partial in self._root.glob(".weight_v*"):  # of a writer that was killed
            shutil.rmtree(partial, ignore_errors=True)

    def write(self, version: int, tensors: NamedTensors) -> WrittenPush:
        """The weights as `version`: what changed, where the push before is known. Where `tensors`
        raise, or the disk does, the next push is whole."""
        if self._encoding is None:
            return self._write_whole(version, tensors)
        try:
            if self._last:
                written = self._write_delta(version, tensors, self._encoding)
            else:
                written = self._write_whole(version, self._noted(tensors))
        except BaseException:
            self._last = {}
            raise
        self._version = version
        return written

    def write_whole_too(self, version: int) -> WrittenPush:
        """The delta that was just written as a whole model, for engines that lack its base."""
        return self._write_whole(version, self._last.items(), suffix="_whole")

    def done(self, version: int) -> None:
        """No engine reads what is older than `version` from now on."""
        if self._keeps:
            return
        for folder in self._root.glob("weight_v*"):
            if not folder.name.startswith(_name(version)):
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """No engine reads anything from now on."""
        if not self._keeps:
            for folder in self._root.glob("weight_v*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _noted(self, tensors: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
        noted = {}
        for name, tensor in tensors:
            noted[name] = tensor.detach().to("cpu", copy=True).contiguous()
            yield name, noted[name]
        self._last = noted

    def _write_whole(self, version: int, tensors: NamedTensors, suffix: str = "") -> WrittenPush:
        folder = self._root / (_name(version) + suffix)
        self._write_model(folder, tensors)
        write_manifest(folder, PushManifest(self._stream, version, began_ns=self._began_ns))
        return WrittenPush(folder, _size_of(folder))

    def _write_delta(self, version: int, tensors: NamedTensors, encoding: Encoding) -> WrittenPush:
        changes: dict[str, torch.Tensor] = {}
        checksums: dict[str, str] = {}
        for name, tensor in tensors:
            new = tensor.detach().to("cpu", copy=True).contiguous()
            raw = _bytes_of(new)
            change = encode(_bytes_of(self._last[name]), raw, encoding)
            self._last[name] = new
            if change is not None:
                changes[name] = torch.from_numpy(np.frombuffer(bytearray(change), np.uint8))
                checksums[name] = checksum(raw, self._checksum)
        delta = Delta(self._version, encoding, self._checksum, checksums)
        folder = self._root / _name(version)
        shutil.rmtree(folder, ignore_errors=True)
        disk.make_folder(folder)
        disk.write_file(folder / DELTA, save(changes))
        write_manifest(folder, PushManifest(self._stream, version, delta, self._began_ns))
        disk.sync_tree(folder)
        return WrittenPush(folder, _size_of(folder))


def _name(version: int) -> str:
    return f"weight_v{version:06d}"


def _begun(root: Path) -> Iterator[int]:
    """When the streams began whose pushes lie in `root`."""
    for folder in root.glob("weight_v*"):
        with suppress(DataError):
            yield read_push(folder).began_ns


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
