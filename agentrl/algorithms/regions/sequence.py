"""Sequences of which the product of all ratios left its band are dropped whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sequence"]


class Sequence(Band):
    """Rejection by sequence; see `Band`. A sequence is a trajectory segment, and of it the trained
    tokens."""

    bounds = (0.5, 2.0)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("sequence"))
