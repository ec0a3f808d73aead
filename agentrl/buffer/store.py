"""Append-only segment files of payloads.

    segment: OPEN (appended to, fsynced before a row names it) -> CLOSED -> dropped

A payload is whole or refused: its xxh3 is checked at every read. After a restart a new segment is
opened, so a tail torn by a crash is never written behind. There is one writer; reading opens the
file itself and may run beside it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import xxhash
from typing_extensions import Buffer

from agentrl import disk
from agentrl.errors import StoreError
from agentrl.types import PayloadRef

__all__ = ["PayloadStore", "missing_bytes", "read_payload", "segments_in"]

_SUFFIX = ".seg"


class PayloadStore:
    """The store of the buffer in `folder`; `segment_bytes` is where a segment is closed."""

    #: What references to its payloads call it.
    name = "buffer"

    def __init__(self, folder: Path, *, segment_bytes: int, first: int) -> None:
        """`first`: the smallest number a new segment may have."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        disk.make_folder(folder, 0o700)
        self._number = max([first - 1, *self.numbers()])
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def numbers(self) -> list[int]:
        """Numbers of the segments on disk."""
        return segments_in(self.folder)

    def append(self, columns: Sequence[Buffer]) -> PayloadRef:
        """Write one payload; it is durable only after `sync`."""
        file = self._writable()
        digest = xxhash.xxh3_64()
        offset = file.tell()
        for column in columns:
            file.write(column)
            digest.update(column)
        num_bytes = file.tell() - offset
        return PayloadRef(self.name, self._number, offset, num_bytes, digest.intdigest())

    def sync(self) -> None:
        """Make everything appended so far durable."""
        if self._file is not None:
            disk.sync_file(self._file)

    def drop(self, segments: Iterable[int]) -> None:
        """Delete segments; the open one is closed first."""
        for number in segments:
            if number == self._number:
                self._close()
            _path(self.folder, number).unlink(missing_ok=True)

    def read(self, ref: PayloadRef) -> bytes:
        """The bytes of a payload; StoreError when they are not what was stored."""
        if ref.store != self.name:
            raise StoreError(f"payload of store {ref.store} asked of store {self.name}")
        return read_payload(self.folder, ref)

    def _writable(self) -> BinaryIO:
        if self._file is not None and self._file.tell() >= self._segment_bytes:
            self._close()
        if self._file is None:
            self._number += 1
            self._file = disk.create_file(_path(self.folder, self._number))
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None


def segments_in(folder: Path) -> list[int]:
    """Numbers of the segments in the folder of a store, in order."""
    return sorted(int(path.stem) for path in folder.glob(f"*{_SUFFIX}"))


def missing_bytes(folder: Path, ref: PayloadRef) -> str | None:
    """What the store in `folder` lacks of a payload, in words; None: its bytes are there, whatever
    they hold."""
    try:
        size = _path(folder, ref.segment).stat().st_size
    except OSError as error:
        return f"segment {ref.segment} cannot be read: {error}"
    end = ref.offset + ref.num_bytes
    return f"segment {ref.segment} has {size} bytes of {end}" if size < end else None


def read_payload(folder: Path, ref: PayloadRef) -> bytes:
    """Read and verify a payload of the store in `folder`; StoreError on any damage."""
    try:
        with _path(folder, ref.segment).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if ref.offset < 0 or ref.num_bytes < 0 or ref.offset + ref.num_bytes > size:
                raise StoreError(
                    f"segment {ref.segment} has {size} bytes, a payload at {ref.offset} needs"
                    f" {ref.num_bytes} more"
                )
            file.seek(ref.offset)
            payload = file.read(ref.num_bytes)
    except OSError as error:
        raise StoreError(f"segment {ref.segment} cannot be read: {error}") from error
    found = xxhash.xxh3_64_intdigest(payload)
    if found != ref.xxh3:
        raise StoreError(
            f"payload {ref.segment}:{ref.offset} is damaged: xxh3 {found:016x}, the ledger says"
            f" {ref.xxh3:016x}"
        )
    return payload


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{_SUFFIX}"
