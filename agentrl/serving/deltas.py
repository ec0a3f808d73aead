"""What changed in a tensor between two pushes, as few bytes. Pure.

    xor         new ^ old: smallest, and right only once on the right base
    overwrite   where bytes changed, and their new values: larger, right any number of times

Both work on raw bytes, whatever the type, and are compressed with zstd. Neighbouring weights differ
in their low bytes, if at all: of a push at a small learning rate most bytes are 0 under xor.
"""

import zlib
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from agentrl.errors import DataError

__all__ = ["Bytes", "Checksum", "Encoding", "checksum", "decode", "encode"]

Encoding = Literal["xor", "overwrite"]
Checksum = Literal["xxh3-128", "adler32"]
Bytes = npt.NDArray[np.uint8]

#: Higher ones cost more time than they save on a link of 1 GB/s.
_LEVEL = 1
_POSITION = np.dtype("<u8")


def encode(old: Bytes, new: Bytes, encoding: Encoding) -> bytes | None:
    """The change from `old` to `new`, of one length; None where there is none."""
    if encoding == "xor":
        change = new ^ old
        if not change.any():
            return None
        return _compressed(change.data)
    places = np.flatnonzero(new != old)
    if not len(places):
        return None
    head = places.astype(_POSITION).view(np.uint8)
    return _compressed(np.concatenate([head, new[places]]).data)


def decode(old: Bytes, change: bytes, encoding: Encoding) -> Bytes:
    """The new bytes. DataError where `change` is none of a tensor of this length."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(
            change, max_output_size=len(old) * (_POSITION.itemsize + 1)
        )
    except zstandard.ZstdError as error:
        raise DataError(f"a change of weights cannot be unpacked: {error}") from error
    found = np.frombuffer(raw, np.uint8)
    if encoding == "xor":
        if len(found) != len(old):
            raise DataError(f"a change of {len(found)} bytes is none of a tensor of {len(old)}")
        return found ^ old
    number, rest = divmod(len(found), _POSITION.itemsize + 1)
    places = found[: number * _POSITION.itemsize].view(_POSITION)
    if rest or (number and places.max() >= len(old)):
        raise DataError(f"a change of {len(found)} bytes is none of a tensor of {len(old)}")
    new = old.copy()
    new[places] = found[number * _POSITION.itemsize :]
    return new


def checksum(data: Bytes, kind: Checksum) -> str:
    """Of the raw bytes, in hexadecimal."""
    if kind == "adler32":
        return f"{zlib.adler32(data.data):08x}"
    return xxhash.xxh3_128_hexdigest(data.data)


def _compressed(data: memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)
