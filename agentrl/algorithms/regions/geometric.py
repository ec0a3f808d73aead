"""Sequences of which the geometric mean of the ratios left its band are dropped whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Geometric"]


class Geometric(Band):
    """Rejection by the mean of a sequence; see `Band`. The default is that of verl's preset."""

    bounds = (0.999, 1.001)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("geometric"))
