"""Weights as flat byte buckets, laid out as SGLang's `flattened_bucket` expects them.

A bucket is one contiguous uint8 tensor that holds the bytes of several tensors one after another,
each at an offset that its element size divides; SGLang rebuilds them from names, dtypes and shapes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

__all__ = ["Bucket", "BucketStream", "make_buckets"]


class Bucket(NamedTuple):
    """`payload` holds the tensors `names`, in order. `last` closes a set of weights."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    payload: torch.Tensor
    last: bool


def make_buckets(tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> Iterator[Bucket]:
    """Pack `tensors` (name, tensor) in order into buckets of at most `max_bytes` each; a tensor
    larger than that travels alone."""
    pending: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        fits = size + tensor.nbytes <= max_bytes and size % tensor.itemsize == 0
        if pending and not fits:
            yield _pack(pending, last=False)
            pending, size = [], 0
        pending.append((name, tensor))
        size += tensor.nbytes
    if pending:
        yield _pack(pending, last=True)


def _pack(named: list[tuple[str, torch.Tensor]], *, last: bool) -> Bucket:
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in named]
    return Bucket(
        names=[name for name, _ in named],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        shapes=[list(tensor.shape) for _, tensor in named],
        payload=torch.cat(flat),
        last=last,
    )


class BucketStream:
    """Buckets of one push. Each iteration starts at the first one, for a fleet that lost a member.

    What can be iterated again is packed again; of a one-shot iterator the buckets that were sent
    are kept in host memory.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], max_bytes: int) -> None:
        self._again = None if iter(tensors) is tensors else (tensors, max_bytes)
        self._rest = make_buckets(tensors, max_bytes)
        self._kept: list[Bucket] = []

    def __iter__(self) -> Iterator[Bucket]:
        if self._again is not None:
            yield from make_buckets(*self._again)
            return
        yield from self._kept
        for bucket in self._rest:
            self._kept.append(bucket._replace(payload=bucket.payload.cpu()))
            yield bucket
