"""Sequences of which the product of all ratios left its band are dropped whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sequence"]


class Sequence(Band):
    """Keeps a sequence whose product of pi_prox / mu lies between the bounds (`Band`). A sequence
    is a trajectory segment, and of it the trained tokens.

    MIS by sequence: Liu et al. 2025, "When Speed Kills Stability",
    https://richardli.xyz/rl-collapse.
    """

    bounds = (0.5, 2.0)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("sequence"))
