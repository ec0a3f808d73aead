"""The only place where bytes of another process become objects.

A message travels as these frames (little-endian):

    prelude   magic 4s | version u16 | reserved u16 | num_columns u32 | header_bytes u32
              | column_bytes u64 | xxh3_64 u64
    header    the Envelope as msgpack
    columns   raw bytes, one frame each, never copied

The checksum covers the prelude before it, the header and every column with its length, so no bit
and no frame boundary can move unseen. It guards against damage and version skew; who may speak at
all is the transport's business (CURVE).

Refused, always as FrameError: another magic, version or layout, a wrong length or checksum, a
header that is not an Envelope, and (before it is sent) a message over `max_bytes`. Of a whole frame
whose message cannot be read, `salvage` tells who sent it and what it was about.
"""

import struct
from collections.abc import Sequence
from typing import Protocol, cast

import msgspec
import xxhash
from typing_extensions import Buffer

from agentrl.errors import FrameError, ProtocolVersionError
from agentrl.types import EpisodeId
from agentrl.wire.messages import Envelope, Message

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "ColumnBuffer",
    "Remains",
    "decode",
    "encode",
    "require_encodable",
    "salvage",
]

PROTOCOL_VERSION = 4
MAX_MESSAGE_BYTES = 64 * 1024**2


class _Array(Protocol):
    """A numpy array as its stubs declare it on Python 3.11: without the buffer it offers."""

    @property
    def data(self) -> memoryview: ...


#: A column to send: any C-contiguous buffer.
ColumnBuffer = Buffer | _Array

_MAGIC = b"aRLw"
_IDENT = struct.Struct("<4sH")
_FACTS = struct.Struct("<4sHHIIQ")
_CHECKSUM = struct.Struct("<Q")
_LARGEST = 2**63 - 1
_PRELUDE_BYTES = _FACTS.size + _CHECKSUM.size


class _Outline(msgspec.Struct, frozen=True, array_like=True):
    """An Envelope whose body is left as it came."""

    epoch: int
    seq: int
    body: msgspec.Raw


class _ReportOutline(msgspec.Struct, frozen=True):
    id: EpisodeId


class _FinishedOutline(msgspec.Struct, frozen=True, tag_field="t", tag="finished"):
    report: _ReportOutline


class _VerdictOutline(msgspec.Struct, frozen=True, tag_field="t", tag="verdict"):
    group: str


class Remains(msgspec.Struct, frozen=True):
    """What can be read of a whole frame whose message cannot: `epoch` and `seq` of its envelope,
    the episode of a Finished, the group of a GroupScore."""

    epoch: int
    seq: int
    episode: EpisodeId | None = None
    group: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_outline_decoder = msgspec.msgpack.Decoder(_Outline)
_body_decoder = msgspec.msgpack.Decoder(_FinishedOutline | _VerdictOutline)
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError)


def encode(
    envelope: Envelope,
    columns: Sequence[ColumnBuffer] = (),
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> list[bytes | memoryview]:
    """The frames of a message. `columns` are C-contiguous buffers of any item type; the result
    refers to their memory, so they must not change until the message has been sent.

    Raises FrameError when the message exceeds `max_bytes` or cannot be encoded.
    """
    header, views, column_bytes = _parts(envelope, columns, max_bytes)
    facts = _FACTS.pack(_MAGIC, PROTOCOL_VERSION, 0, len(views), len(header), column_bytes)
    prelude = facts + _CHECKSUM.pack(_checksum(facts, header, views))
    return [prelude, header, *views]


def require_encodable(message: Message, columns: Sequence[ColumnBuffer] = ()) -> None:
    """Raise FrameError where `encode` would, without the work of it, whatever the epoch and the
    sequence number will be."""
    _parts(Envelope(_LARGEST, _LARGEST, message), columns, MAX_MESSAGE_BYTES)


def decode(frames: Sequence[Buffer]) -> tuple[Envelope, list[memoryview]]:
    """The message of these frames and views of its columns (format "B", in the frames' memory).

    Raises FrameError for anything that `encode` of this protocol version did not make;
    ProtocolVersionError, naming both versions, when only the version differs.
    """
    header, columns = _checked(frames)
    return _decode_header(header), columns


def salvage(frames: Sequence[Buffer]) -> Remains | None:
    """What is left of a message that `decode` has refused, so that its sender can be answered; None
    when it is damaged, of another version, or no Envelope at all."""
    try:
        header, _ = _checked(frames)
        outline = _outline_decoder.decode(header)
    except (FrameError, *_UNREADABLE, RecursionError, MemoryError):
        return None
    try:
        body = _body_decoder.decode(outline.body)
    except (*_UNREADABLE, RecursionError, MemoryError):
        return Remains(outline.epoch, outline.seq)
    if isinstance(body, _FinishedOutline):
        return Remains(outline.epoch, outline.seq, episode=body.report.id)
    return Remains(outline.epoch, outline.seq, group=body.group)


def _parts(
    envelope: Envelope, columns: Sequence[ColumnBuffer], max_bytes: int
) -> tuple[bytes, list[memoryview], int]:
    """Header, columns as bytes, and the bytes of all columns."""
    name = type(envelope.body).__name__
    try:
        header = _encoder.encode(envelope)
        views = [_as_bytes(column) for column in columns]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"{name} cannot be encoded: {error}") from error
    column_bytes = sum(view.nbytes for view in views)
    total = _PRELUDE_BYTES + len(header) + column_bytes
    if total > max_bytes:
        raise FrameError(
            f"{name} has {total} bytes, {total - max_bytes} over the limit of {max_bytes}: "
            "send fewer or smaller trajectories in one message"
        )
    return header, views, column_bytes


def _checked(frames: Sequence[Buffer]) -> tuple[memoryview, list[memoryview]]:
    """Header and columns of a message that arrived as it was sent."""
    views = [memoryview(frame) for frame in frames]
    if not views:
        raise FrameError("a message without frames")
    facts = _check_prelude(views)
    header, columns = views[1], views[2:]
    (expected,) = _CHECKSUM.unpack_from(views[0], _FACTS.size)
    found = _checksum(facts, header, columns)
    if found != expected:
        raise FrameError(
            f"a message of {len(views)} frames is damaged: xxh3 {found:016x}, "
            f"its prelude says {expected:016x}"
        )
    return header, columns


def _check_prelude(views: list[memoryview]) -> bytes:
    prelude = bytes(views[0][:_PRELUDE_BYTES])
    if len(prelude) < _IDENT.size or not prelude.startswith(_MAGIC):
        raise FrameError(f"not an agentrl message: it starts with {prelude[:4]!r}")
    version = _IDENT.unpack_from(prelude)[1]
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the message has protocol version {version}, this process speaks "
            f"{PROTOCOL_VERSION}: start all processes of a run from the same agentrl"
        )
    if views[0].nbytes != _PRELUDE_BYTES:
        raise FrameError(f"a prelude of {views[0].nbytes} bytes instead of {_PRELUDE_BYTES}")
    *_, num_columns, header_bytes, column_bytes = _FACTS.unpack_from(prelude)
    if len(views) != num_columns + 2:
        raise FrameError(f"{len(views)} frames came, the prelude says {num_columns + 2}")
    found = (views[1].nbytes, sum(view.nbytes for view in views[2:]))
    if found != (header_bytes, column_bytes):
        raise FrameError(
            f"header and columns have {found} bytes, the prelude says "
            f"{(header_bytes, column_bytes)}"
        )
    return prelude[: _FACTS.size]


def _decode_header(header: memoryview) -> Envelope:
    try:
        return _decoder.decode(header)
    except _UNREADABLE as error:
        raise FrameError(f"the header is not an Envelope: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise FrameError("the header is nested too deeply or claims too much") from error


def _checksum(facts: bytes, header: Buffer, columns: Sequence[memoryview]) -> int:
    digest = xxhash.xxh3_64(facts)
    digest.update(header)
    for column in columns:
        digest.update(_CHECKSUM.pack(column.nbytes))
        digest.update(column)
    return digest.intdigest()


def _as_bytes(column: ColumnBuffer) -> memoryview:
    view = memoryview(cast(Buffer, column))
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
