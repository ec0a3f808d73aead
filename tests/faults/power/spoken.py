"""What a process said and heard over plain ZMTP 3 connections, message by message.

A message is said with its first byte and heard with its last: `at` is the record with that byte.
"""

from collections.abc import Iterator

import msgspec

from agentrl.wire.frames import decode
from agentrl.wire.messages import Envelope
from tests.faults.power.recording import Record

__all__ = ["Spoken", "conversation"]

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4


class Spoken(msgspec.Struct, frozen=True):
    """A message on a connection: the place of its record, and whether the process said it."""

    at: int
    connection: str
    said: bool
    envelope: Envelope


class _Stream:
    """One direction of a connection, as far as it came."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.begins: list[tuple[int, int]] = []  # (first byte, record)
        self.frames: list[bytes] = []
        self.start = 0
        self.at = 0

    def add(self, index: int, data: bytes) -> None:
        self.begins.append((len(self.data), index))
        self.data += data

    def whole(self) -> Iterator[tuple[int, list[bytes]]]:
        """Messages that are complete by now, each with the place of its first byte."""
        if self.at == 0:
            if len(self.data) < _GREETING_BYTES:
                return
            assert self.data[0] == 0xFF
            assert self.data[9] == 0x7F, "no greeting of ZMTP"
            assert self.data[12:16] == b"NULL", "an encrypted connection cannot be read"
            self.at = _GREETING_BYTES
        while (found := self._frame()) is not None:
            flags, body, begin = found
            if flags & _COMMAND:
                continue
            if not self.frames:
                self.start = begin
            self.frames.append(body)
            if not flags & _MORE:
                yield self.start, self.frames
                self.frames = []

    def record_of(self, place: int) -> int:
        return max(index for begin, index in self.begins if begin <= place)

    def _frame(self) -> tuple[int, bytes, int] | None:
        data, begin = self.data, self.at
        head = 9 if len(data) > begin and data[begin] & _LONG else 2
        if len(data) < begin + head:
            return None
        length = int.from_bytes(data[begin + 1 : begin + head], "big")
        if len(data) < begin + head + length:
            return None
        self.at = begin + head + length
        return data[begin], bytes(data[begin + head : self.at]), begin


def conversation(records: list[Record]) -> list[Spoken]:
    """Every message, in order of their records."""
    streams: dict[tuple[str, bool], _Stream] = {}
    found = []
    for index, record in enumerate(records):
        if record.op not in "SV":
            continue
        said = record.op == "S"
        stream = streams.setdefault((record.path, said), _Stream())
        if not stream.data and not record.data.startswith(b"\xff"):
            continue  # no connection: the loop wakes itself
        stream.add(index, record.data)
        for start, frames in stream.whole():
            at = stream.record_of(start) if said else index
            found.append(Spoken(at, record.path, said, decode(frames)[0]))
    return sorted(found, key=lambda spoken: spoken.at)
