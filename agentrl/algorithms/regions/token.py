"""Tokens whose own ratio left its band are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.algorithms.regions.base import Band
from agentrl.algorithms.rows import Trained

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Token"]


class Token(Band):
    """Rejection by token; see `Band`."""

    bounds = (0.5, 2.0)

    def keeps(self, trained: Trained) -> Tensor:
        return self.has_inside(trained.engine_log_ratio("token"))
