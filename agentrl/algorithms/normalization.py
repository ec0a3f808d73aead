"""`--normalize-advantages`: mean 0 and variance 1 over the trained tokens of an iteration."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from agentrl.algorithms.rows import Row

__all__ = ["Total", "normalize"]

#: Sums over replicas. Called equally often on all of them.
Total = Callable[[Sequence[float]], list[float]]
#: Added to the variance.
_EPSILON = 1e-8


def normalize(rows: Sequence[Row], total: Total) -> None:
    """`(A - mean) / sqrt(var + 1e-8)`, var unbiased, over the trained tokens of all replicas.

    REINFORCE++: Hu et al. 2025, https://arxiv.org/abs/2501.03262, there over the batch of one step;
    here, as in slime, over an iteration. Of fewer than two tokens the variance is 0.
    """
    trained = [row.columns["advantages"][row.columns["mask"]].astype(np.float64) for row in rows]
    count, summed = total([float(sum(map(len, trained))), float(sum(a.sum() for a in trained))])
    mean = summed / max(1.0, count)
    (squares,) = total([float(sum(np.square(a - mean).sum() for a in trained))])
    scale = 1 / math.sqrt(squares / max(1.0, count - 1) + _EPSILON)
    for row in rows:
        centred_L = row.columns["advantages"].astype(np.float64) - mean
        row.columns["advantages"] = (centred_L * scale).astype(np.float32)
