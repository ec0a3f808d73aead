"""Weights as flat byte buckets, laid out as SGLang's `flattened_bucket` expects them.

A bucket is one contiguous uint8 tensor that holds the bytes of several tensors one after another,
each at an offset that its element size divides; SGLang rebuilds them from names, dtypes and shapes.

Tensors that SGLang joins to one parameter share a bucket: of DeepSeek's `q_a_proj` and
`kv_a_proj_with_mqa` it would forget the one that came without the other.

On a host new memory is dear: the kernel clears each page of it. So buckets there lie in two rooms
in turn, which stay from push to push: one is filled while the other is sent.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from agentrl.serving.checksums import Fused

__all__ = ["Bucket", "BucketStream", "Rooms", "make_buckets", "new_room"]


class Bucket(NamedTuple):
    """`payload` holds the tensors `names`, in order. `last` closes a set of weights."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    payload: torch.Tensor
    last: bool


def new_room(size: int) -> torch.Tensor:
    """So many bytes of host memory."""
    return torch.empty(size, dtype=torch.uint8)


class Rooms:
    """Host memory for two buckets in turn, from `make`. A bucket is overwritten by the next but
    one."""

    def __init__(self, make: Callable[[int], torch.Tensor] = new_room) -> None:
        self._make = make
        self._rooms: list[torch.Tensor] = []

    def next(self, size: int) -> torch.Tensor:
        """Room for a bucket of `size` bytes, where the last but one lay."""
        room = self._rooms.pop(0) if len(self._rooms) == 2 else None
        if room is None or room.nbytes < size:
            room = self._make(size)
        self._rooms.append(room)
        return room[:size]

    def leave(self) -> None:
        """Overwrite nothing: somebody may still send what was given up."""
        self._rooms = []


def make_buckets(
    tensors: Iterable[tuple[str, torch.Tensor]],
    max_bytes: int,
    fused: Fused | None = None,
    rooms: Rooms | None = None,
) -> Iterator[Bucket]:
    """Pack `tensors` (name, tensor) in order into buckets of at most `max_bytes` each. Neighbours
    that are one parameter of the engine (`fused`) stay together; what is larger than a bucket
    travels alone. Buckets lie in `rooms`, or (none given) on the device of their tensors."""
    pending: list[tuple[str, torch.Tensor]] = []
    first, last = 0, ""  # where in `pending` the newest parameter begins, and its name
    for name, tensor in tensors:
        size = sum(each.nbytes for _, each in pending)
        fits = size + tensor.nbytes <= max_bytes and size % tensor.itemsize == 0
        parameter = _parameter(name, fused or {})
        if parameter != last:
            first, last = len(pending), parameter
        if first and not fits:
            yield _pack(pending[:first], rooms, last=False)
            pending, first = pending[first:], 0
        pending.append((name, tensor))
    if pending:
        yield _pack(pending, rooms, last=True)


def _parameter(name: str, fused: Fused) -> str:
    """The engine's parameter of which a tensor is a part. Experts stay apart: it takes one by one
    those that it joins, and all of a layer would fill any bucket."""
    for module, pieces in fused.items():
        for piece in pieces:
            if f".{piece}." in name:
                return name.replace(f".{piece}.", f".{module}.")
    return name


def _pack(named: list[tuple[str, torch.Tensor]], rooms: Rooms | None, *, last: bool) -> Bucket:
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in named]
    return Bucket(
        names=[name for name, _ in named],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        shapes=[list(tensor.shape) for _, tensor in named],
        payload=torch.cat(flat) if rooms is None else _written(flat, rooms),
        last=last,
    )


def _written(pieces: list[torch.Tensor], rooms: Rooms) -> torch.Tensor:
    room, start = rooms.next(sum(piece.nbytes for piece in pieces)), 0
    for piece in pieces:
        room[start : start + piece.nbytes].copy_(piece)
        start += piece.nbytes
    return room


class BucketStream:
    """Buckets of one push. Each iteration starts at the first one, for a fleet that lost a member.

    What can be iterated again is packed again; of a one-shot iterator the buckets that were sent
    are kept in host memory.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        max_bytes: int,
        fused: Fused | None = None,
        rooms: Rooms | None = None,
    ) -> None:
        self._again = None if isinstance(tensors, Iterator) else (tensors, max_bytes, fused, rooms)
        self._rest = make_buckets(tensors, max_bytes, fused)
        self._kept: list[Bucket] = []

    def __iter__(self) -> Iterator[Bucket]:
        if self._again is not None:
            yield from make_buckets(*self._again)
            return
        yield from self._kept
        for bucket in self._rest:
            self._kept.append(bucket._replace(payload=bucket.payload.cpu()))
            yield bucket
