"""Weights as flat byte buckets, laid out as SGLang's `flattened_bucket` expects them.

A bucket is one contiguous uint8 tensor that holds the bytes of several tensors one after another,
each at an offset that its element size divides; SGLang rebuilds them from names, dtypes and shapes.

Tensors that SGLang joins to one parameter share a bucket: of DeepSeek's `q_a_proj` and
`kv_a_proj_with_mqa` it would forget the one that came without the other.

New host memory is slow to write: the kernel maps each page at its first use. So buckets there are
packed into two staging buffers, which are kept from push to push: one is filled while the other is
sent.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from agentrl.serving.checksums import Fused

__all__ = ["Bucket", "BucketStream", "StagingBuffers", "make_buckets", "new_buffer"]


class Bucket(NamedTuple):
    """`payload` holds the tensors `names`, in order. `last` closes a set of weights."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    payload: torch.Tensor
    last: bool


def new_buffer(size: int) -> torch.Tensor:
    """`size` bytes of host memory, uint8."""
    return torch.empty(size, dtype=torch.uint8)


class StagingBuffers:
    """Two buffers in host memory, made by `make`. Buckets are packed into them in turn, so a bucket
    is overwritten by the next but one."""

    def __init__(self, make: Callable[[int], torch.Tensor] = new_buffer) -> None:
        self._make = make
        self._buffers: list[torch.Tensor] = []

    def next(self, size: int) -> torch.Tensor:
        """`size` bytes of the buffer that is free, uint8; it grows if it is too small."""
        buffer = self._buffers.pop(0) if len(self._buffers) == 2 else None
        if buffer is None or buffer.nbytes < size:
            buffer = self._make(size)
        self._buffers.append(buffer)
        return buffer[:size]

    def abandon(self) -> None:
        """Make new buffers: a transfer that was given up may still read the old ones."""
        self._buffers = []


def make_buckets(
    tensors: Iterable[tuple[str, torch.Tensor]],
    max_bytes: int,
    fused: Fused | None = None,
    staging: StagingBuffers | None = None,
) -> Iterator[Bucket]:
    """Pack `tensors` (name, tensor) in order into buckets of at most `max_bytes` each. Neighbours
    that are one parameter of the engine (`fused`) stay together; what is larger than a bucket
    travels alone. Payloads lie in `staging`, or (None) on the device of their tensors."""
    pending: list[tuple[str, torch.Tensor]] = []
    first, last = 0, ""  # where in `pending` the newest parameter begins, and its name
    for name, tensor in tensors:
        size = sum(each.nbytes for _, each in pending)
        fits = size + tensor.nbytes <= max_bytes and size % tensor.itemsize == 0
        parameter = _parameter(name, fused or {})
        if parameter != last:
            first, last = len(pending), parameter
        if first and not fits:
            yield _pack(pending[:first], staging, last=False)
            pending, first = pending[first:], 0
        pending.append((name, tensor))
    if pending:
        yield _pack(pending, staging, last=True)


def _parameter(name: str, fused: Fused) -> str:
    """The engine's parameter of which a tensor is a part. Experts stay apart: it takes one by one
    those that it joins, and all of a layer would fill any bucket."""
    for module, pieces in fused.items():
        for piece in pieces:
            if f".{piece}." in name:
                return name.replace(f".{piece}.", f".{module}.")
    return name


def _pack(
    named: list[tuple[str, torch.Tensor]], staging: StagingBuffers | None, *, last: bool
) -> Bucket:
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in named]
    return Bucket(
        names=[name for name, _ in named],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        shapes=[list(tensor.shape) for _, tensor in named],
        payload=torch.cat(flat) if staging is None else _staged(flat, staging),
        last=last,
    )


def _staged(pieces: list[torch.Tensor], staging: StagingBuffers) -> torch.Tensor:
    buffer, start = staging.next(sum(piece.nbytes for piece in pieces)), 0
    for piece in pieces:
        buffer[start : start + piece.nbytes].copy_(piece)
        start += piece.nbytes
    return buffer


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
        staging: StagingBuffers | None = None,
    ) -> None:
        self._again = (
            None if isinstance(tensors, Iterator) else (tensors, max_bytes, fused, staging)
        )
        self._rest = make_buckets(tensors, max_bytes, fused)
        self._staging = staging
        self._kept: list[Bucket] = []

    def __iter__(self) -> Iterator[Bucket]:
        if self._again is not None:
            yield from make_buckets(*self._again)
            return
        yield from map(self._copied, self._kept)
        for bucket in self._rest:
            self._kept.append(bucket._replace(payload=bucket.payload.cpu()))
            yield self._copied(bucket)

    def _copied(self, bucket: Bucket) -> Bucket:
        """A bucket that was packed elsewhere, in a staging buffer if there are any."""
        if self._staging is None:
            return bucket
        return bucket._replace(payload=_staged([bucket.payload], self._staging))
