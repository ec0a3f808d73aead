"""The tokens that moved farthest are dropped, until the second moment of the rest is small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.normalization import Total
from agentrl.algorithms.regions.base import Region
from agentrl.algorithms.rows import Row

__all__ = ["M2po"]

#: Halvings of the interval in which the greatest kept move is looked for.
_HALVINGS = 50


class M2po(Region):
    """Among tokens that moved in the direction of their advantage (A > 0 and r > 1, or A < 0 and
    r < 1), drops those of the largest (log r)^2 until the mean of the others is within the bound.

    M2PO: Zheng et al. 2025, equation 4 and algorithm 1, https://arxiv.org/abs/2510.01161, over the
    whole batch.
    """

    deviations = (
        "the ratio is pi_prox / mu, once for each iteration (there of the current policy); "
        "tokens that moved equally far are kept or dropped together"
    )
    bounds = (0.04,)
    units = ("largest mean of (log ratio)^2",)
    of_iteration = True

    def keeps_rows(self, rows: Sequence[Row], total: Total) -> Sequence[npt.NDArray[np.bool_]]:
        moves = [_moves(row) for row in rows]
        moved = np.concatenate([np.zeros(0), *(each_L[each_L > 0] for each_L in moves)])
        farthest = self._farthest(np.sort(moved), total)
        return [each_L <= farthest for each_L in moves]

    def _farthest(self, moved: npt.NDArray[np.float64], total: Total) -> float:
        """The greatest (log r)^2 that is kept; the mean of those up to it grows with it."""
        (limit,) = self.given
        sums = np.concatenate([np.zeros(1), np.cumsum(moved)])

        def mean_up_to(value: float) -> float:
            num = int(np.searchsorted(moved, value, side="right"))
            whole, count = total([float(sums[num]), float(num)])
            return whole / count if count else 0.0

        low, high = 0.0, _HIGHEST
        if mean_up_to(high) <= limit:
            low = high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if mean_up_to(middle) <= limit:
                low = middle
            else:
                high = middle
        return low


#: Above every square of a log-ratio.
_HIGHEST = 1e6


def _moves(row: Row) -> npt.NDArray[np.float64]:
    """(log pi_prox / mu)^2 of trained tokens that moved as their advantage says; others: 0."""
    columns = row.columns
    gap_L = columns["prox"].astype(np.float64) - columns["mu"]
    is_there_L = columns["mask"] & (gap_L * columns["advantages"] > 0)
    return np.where(is_there_L, np.square(gap_L), 0.0)
