"""Which sequence goes where: over data-parallel ranks, and into micro-batches.

Pure and deterministic in the lengths alone, so every rank computes the same answer without a word.
"""

import heapq
from collections.abc import Sequence

__all__ = ["balance", "first_fit_decreasing", "split_evenly"]


def split_evenly(num_items: int, num_parts: int) -> list[range]:
    """Contiguous parts whose sizes differ by at most one, the larger first; empty ones left out."""
    size, extra = divmod(num_items, num_parts)
    parts = []
    start = 0
    for part in range(num_parts):
        stop = start + size + (part < extra)
        if stop > start:
            parts.append(range(start, stop))
        start = stop
    return parts


def balance(lengths: Sequence[int], num_bins: int) -> list[list[int]]:
    """Indices of `lengths` in `num_bins` bins of nearly equal sums; bins may be empty.

    Longest processing time first: each item, longest first, goes to the least loaded bin (Graham
    1969, at most 4/3 of the optimum). Ties go to the lower index and the lower bin. Indices come
    back in ascending order.
    """
    heap = [(0, index) for index in range(num_bins)]
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for item in _longest_first(lengths):
        load, index = heapq.heappop(heap)
        bins[index].append(item)
        heapq.heappush(heap, (load + lengths[item], index))
    return [sorted(items) for items in bins]


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in as few bins of at most `capacity` as first-fit-decreasing finds
    (Johnson 1973: at most 11/9 of the optimum plus 6/9). What is longer has a bin of its own."""
    bins: list[list[int]] = []
    free: list[int] = []
    for item in _longest_first(lengths):
        for index, room in enumerate(free):
            if lengths[item] <= room:
                bins[index].append(item)
                free[index] -= lengths[item]
                break
        else:
            bins.append([item])
            free.append(capacity - lengths[item])
    return bins


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
