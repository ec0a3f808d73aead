"""`--scale-lr-by-ess`: a smaller step where few of the old trajectories count.

    scale = sqrt(min(1, share / reference))      share = (sum w)^2 / (n sum w^2)

w = pi_prox / mu of a whole trajectory segment, over its trained tokens, before any bound; n of them
are in the iteration. VCPO: Huang et al. 2026, section 3, https://arxiv.org/abs/2602.17616, with the
square root that goes with AdamW. The reference is the share of the first iteration with
trained tokens of a run, which no older policy sampled: what is below 1 there is how engine and
learner compute. It is state, and is in every checkpoint.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from agentrl.algorithms.normalization import Total
from agentrl.algorithms.rows import LOG_RATIO_LIMIT, Row

__all__ = ["StepSize"]


class StepSize:
    """Keeps the reference. `share`: of the iteration that was looked at last; None: nothing was
    trained in it."""

    deviations: ClassVar[str] = (
        "one share for all steps of an iteration, of the policy at its start (there one for each "
        "mini-batch); "
        "segments that are not computed, since their group earned alike, are not counted; "
        "the reference is measured (in the authors' code 1, or given)"
    )

    def __init__(self) -> None:
        self.reference: float | None = None
        self.share: float | None = None

    def of(self, rows: Sequence[Row], total: Total) -> float:
        """What the learning rate is multiplied with in the steps of this iteration."""
        self.share = _share(rows, total)
        if self.share is None:
            return 1.0
        if self.reference is None:
            self.reference = self.share
        return float(np.sqrt(min(1.0, self.share / self.reference)))

    def state(self) -> bytes:
        """For `restore`."""
        return msgspec.msgpack.encode(self.reference)

    def restore(self, data: bytes) -> None:
        """Take over the reference of a run that goes on; one that had none takes its own."""
        self.reference = msgspec.msgpack.decode(data, type=float | None) if data else None


def _share(rows: Sequence[Row], total: Total) -> float | None:
    log_w = []
    for row in rows:
        trained_L = row.columns["mask"]
        if trained_L.any():
            gap_L = row.columns["prox"].astype(np.float64) - row.columns["mu"]
            log_w.append(float(gap_L[trained_L].sum()))
    w = np.exp(np.clip(log_w, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    num, summed, squared = total([float(len(w)), float(w.sum()), float(np.square(w).sum())])
    return summed**2 / (num * squared) if num else None
