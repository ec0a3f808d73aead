"""Sequences of which the geometric mean of the ratios left its band are dropped whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Geometric"]


class Geometric(Band):
    """Keeps a sequence whose geometric mean of pi_prox / mu lies between the bounds (`Band`), by
    default those of verl's preset.

    MIS by the mean of a sequence: Liu et al. 2025, "When Speed Kills Stability",
    https://richardli.xyz/rl-collapse.
    """

    bounds = (0.999, 1.001)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("geometric"))
