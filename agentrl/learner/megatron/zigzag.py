"""Which positions a context-parallel rank holds, as pure index arithmetic.

A sequence of n tokens (a multiple of 2C) is cut into 2C chunks; rank r of C holds chunks r and
2C-1-r, in that order. Packed sequences are shared out one by one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["gathered_order", "local_positions"]


def local_positions(lengths: Sequence[int], size: int, rank: int) -> Tensor:
    """Positions, in the packed whole, of the tokens that `rank` holds."""
    parts, start = [], 0
    for length in lengths:
        if length % (2 * size):
            raise ValueError(f"{length} tokens cannot be cut into {2 * size} equal chunks")
        chunk = length // (2 * size)
        parts += [
            torch.arange(start + index * chunk, start + (index + 1) * chunk)
            for index in (rank, 2 * size - 1 - rank)
        ]
        start += length
    return torch.cat(parts)


def gathered_order(lengths: Sequence[int], size: int) -> Tensor:
    """Where each position of the packed whole lies in the concatenation of all ranks' tokens."""
    held = torch.cat([local_positions(lengths, size, rank) for rank in range(size)])
    order = torch.empty_like(held)
    order[held] = torch.arange(len(held))
    return order
