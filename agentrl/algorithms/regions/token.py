"""Tokens whose own ratio left its band are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Token"]


class Token(Band):
    """Keeps a token whose pi_prox / mu lies between the bounds (`Band`).

    MIS by token: Liu et al. 2025, "When Speed Kills Stability", https://richardli.xyz/rl-collapse.
    """

    bounds = (0.5, 2.0)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("token"))
