"""A file of one iteration's rollouts: what a learner is given to train on, whole and by itself.

    magic | columns of the first trajectory | columns of the second | ... | header | trailer

The header is msgpack: the lease as the buffer handed it out, the references of its rows pointing
into this file, and the versions of the weights that sampled it. The trailer says how long the
header is, with its digest, so that a file that was cut short is none. The columns of a trajectory
lie one after the other as its `layout` says, under the digest of its reference.

Refused, as DataError that names the file: another format (of a pickle, slime's among them, no byte
is interpreted), another version of this one, and whatever is not as it was written.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash
from typing_extensions import Buffer

from agentrl import disk
from agentrl.errors import DataError
from agentrl.paths import kind_of
from agentrl.types import GroupRows, LeaseHeader, PayloadRef, TrajectoryRow, VersionRow

__all__ = [
    "Rollouts",
    "read_columns",
    "read_rollouts",
    "write_rollouts",
]

_FORMAT = 1
_MAGIC = b"aRLrolls"
#: Bytes of the header, its xxh3, the version of the format, and the magic once more.
_TRAILER = struct.Struct("<QQQ8s")
_STORE = "rollout-file"
#: How files begin that somebody may have meant: torch's archives and bare pickles.
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

Columns = Sequence[Buffer]


class Rollouts(msgspec.Struct, frozen=True):
    """The lease, and all versions that its run had announced by then, in order."""

    lease: LeaseHeader
    versions: list[VersionRow]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Rollouts).decode


def write_rollouts(
    path: Path,
    rollouts: Rollouts,
    columns_of: Callable[[GroupRows], Iterable[Columns]],
) -> None:
    """Write a file at once: a reader finds the one that was there before, or this one. `columns_of`
    is asked for one group after the other, for the columns of each of its trajectories in order.

    Raises OSError, and what `columns_of` raises; then nothing is left.
    """
    disk.make_folder(path.parent)
    beside = path.with_name(path.name + ".tmp")
    beside.unlink(missing_ok=True)
    try:
        with disk.create_file(beside) as file:
            file.write(_MAGIC)
            groups = [_written(file, group, columns_of(group)) for group in rollouts.lease.groups]
            lease = msgspec.structs.replace(rollouts.lease, groups=groups)
            header = _encode(Rollouts(lease, rollouts.versions))
            digest = xxhash.xxh3_64_intdigest(header)
            file.write(header + _TRAILER.pack(len(header), digest, _FORMAT, _MAGIC))
            disk.sync_file(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    disk.sync(path.parent)


def _written(file: BinaryIO, group: GroupRows, columns: Iterable[Columns]) -> GroupRows:
    """Append the columns of a group; its rows, which refer to them."""
    rows = []
    for row, own in zip(group.trajectories, columns, strict=True):
        digest, offset = xxhash.xxh3_64(), file.tell()
        for column in own:
            file.write(column)
            digest.update(column)
        ref = PayloadRef(_STORE, 0, offset, file.tell() - offset, digest.intdigest())
        rows.append(msgspec.structs.replace(row, payload=ref))
    return msgspec.structs.replace(group, trajectories=rows)


def read_rollouts(path: Path) -> Rollouts:
    """What the file holds, but for its columns, of which the places are checked. Raises
    DataError."""
    with _open(path) as file:
        size = file.seek(0, 2)
        start, header = _header(path, file, size)
    try:
        found = _decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: its header cannot be read: {error}") from error
    end = len(_MAGIC)
    for group in found.lease.groups:
        _check_group(path, group)
        for row in group.trajectories:
            ref = row.payload
            wanted = row.meta.num_tokens * sum(column.token_bytes for column in row.meta.layout)
            if (ref.offset, ref.num_bytes) != (end, wanted):
                raise DataError(
                    f"{path}: episode {row.episode} is said to have {ref.num_bytes} bytes at "
                    f"{ref.offset}; {wanted} at {end} are due to it"
                )
            end += ref.num_bytes
    if end != start:
        raise DataError(f"{path}: its columns end at byte {end}, and its header begins at {start}")
    return found


def _check_group(path: Path, group: GroupRows) -> None:
    num, told = len(group.episodes), (group.rewards, group.metrics, group.stop_reasons, group.facts)
    if not num or any(len(each) not in (num, 0) for each in told) or len(group.rewards) != num:
        raise DataError(
            f"{path}: group {group.group} has {num} episodes, and {[len(each) for each in told]} "
            "rewards, metrics, reasons why they stopped, and facts"
        )
    played = [row.episode for row in group.trajectories]
    if [*dict.fromkeys(played)] != group.episodes:
        raise DataError(f"{path}: the trajectories of group {group.group} are not of its episodes")


def read_columns(file: BinaryIO, row: TrajectoryRow) -> bytes:
    """The columns of a trajectory, one after the other, of a file that `read_rollouts` has read.
    Raises DataError where they are not what was written."""
    ref = row.payload
    file.seek(ref.offset)
    data = file.read(ref.num_bytes)
    if xxhash.xxh3_64_intdigest(data) != ref.xxh3:
        raise DataError(
            f"{file.name}: the tokens of episode {row.episode} are damaged (bytes {ref.offset} to "
            f"{ref.offset + ref.num_bytes}); bring the file back from a "
            "copy, or save the rollouts again"
        )
    return data


def _open(path: Path) -> BinaryIO:
    if (kind := kind_of(path)) != "a file":
        raise DataError(f"{path} is {kind}, not a file of rollouts")
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _header(path: Path, file: BinaryIO, size: int) -> tuple[int, bytes]:
    """Where the header begins, and its bytes."""
    file.seek(0)
    begin = file.read(len(_MAGIC))
    if begin.startswith(_PICKLES):
        raise DataError(
            f"{path} is a pickle, or an archive of torch that holds one, as slime saves rollouts: "
            "reading it would run what it says. Load a file that --save-debug-rollout-data of "
            "agentrl has written"
        )
    if begin != _MAGIC:
        raise DataError(f"{path} is no file of rollouts that --save-debug-rollout-data wrote")
    room = size - len(_MAGIC) - _TRAILER.size
    if room >= 0:
        file.seek(size - _TRAILER.size)
        length, digest, version, end = _TRAILER.unpack(file.read(_TRAILER.size))
    if room < 0 or end != _MAGIC or length > room:
        raise DataError(f"{path} is cut short: its end is missing; save the rollouts again")
    if version != _FORMAT:
        raise DataError(
            f"{path} has version {version} of the format and this agentrl reads {_FORMAT}: save "
            "the rollouts again with it"
        )
    start = size - _TRAILER.size - length
    file.seek(start)
    header = file.read(length)
    if xxhash.xxh3_64_intdigest(header) != digest:
        raise DataError(f"{path}: its header is damaged; save the rollouts again")
    return start, header
