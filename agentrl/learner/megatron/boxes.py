"""Boxes in an array: flat ranges as boxes, and what two boxes have in common.

A box is its offset and its sizes, one number of each for every axis. A row-major range of a matrix
is at most three: the rest of a row, whole rows, the start of a row.
"""

from collections.abc import Iterator
from math import prod

__all__ = ["Box", "cut", "overlap"]

Axes = tuple[int, ...]
Box = tuple[Axes, Axes]
Slices = tuple[slice, ...]


def cut(shape: Axes, start: int, stop: int) -> Iterator[Box]:
    """The boxes that make up the row-major elements [start, stop) of an array of `shape`, in their
    order. start < stop."""
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:
        yield from _in_row(shape, last, start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from _in_row(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if last * row < stop:
        yield from _in_row(shape, last, 0, stop - last * row)


def _in_row(shape: Axes, row: int, start: int, stop: int) -> Iterator[Box]:
    for offset, sizes in cut(shape[1:], start, stop):
        yield (row, *offset), (1, *sizes)


def overlap(one: Box, other: Box) -> tuple[Slices, Slices] | None:
    """The common part of two boxes of one array, as slices of each; None when there is none."""
    ours, theirs = [], []
    for at, size, low, length in zip(*one, *other, strict=True):
        first, last = max(at, low), min(at + size, low + length)
        if first >= last:
            return None
        ours.append(slice(first - at, last - at))
        theirs.append(slice(first - low, last - low))
    return tuple(ours), tuple(theirs)
