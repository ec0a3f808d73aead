"""`sft_loss`: the negative log-likelihood of demonstrated turns, and of their context at a weight.

    loss = -sum over labels of log pi(label) * c / D        c = 1 demonstrated, --prompt-loss-weight
                                                            for what the model only reads

D is the sum of all c of the step, or per dialogue as `--calculate-per-token-loss` says (see
`agentrl.learner.plan`). No paper is followed: it is maximum likelihood.
Suffixes: T = packed tokens, K = trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import Algorithm, Needs, Total
from agentrl.algorithms.rows import Credit, MicroBatch, Outputs, Row
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows, TrajectoryMeta

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sft"]


class Sft(Algorithm):
    """Imitates dialogues. Columns read: mask, demonstrated, weights."""

    is_chosen = False

    def __init__(self, cfg: RunConfig, args: Any) -> None:
        super().__init__(cfg, args)
        self.needs = Needs(engines=False)

    def num_targets(self, meta: TrajectoryMeta) -> float:
        """Demonstrated tokens count 1 and others their weight, but for the first, which nothing
        predicts."""
        context = meta.num_tokens - meta.num_demonstrated - 1
        return meta.num_demonstrated + self.cfg.prompt_loss_weight * context

    def credit(self, group: GroupRows) -> Sequence[Credit]:
        return [Credit(0.0)] * len(group.episodes)

    def mask(self, row: Row) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = row.columns["demonstrated"] | (
            self.cfg.prompt_loss_weight != 0
        )
        return found

    def advantages(self, rows: Sequence[Row], total: Total) -> None:
        for row in rows:
            counts_L = np.where(row.columns["demonstrated"], 1.0, self.cfg.prompt_loss_weight)
            row.columns["weights"] = counts_L.astype(np.float32) * row.columns["weights"]

    def loss(self, model: str, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        import torch

        columns = batch.columns
        trained_K = columns["mask"].nonzero().squeeze(1)
        nll_K = -out.logprobs_T[trained_K].float()
        loss = (nll_K * columns["weights"][trained_K]).sum()
        demonstrated_K = columns["demonstrated"][trained_K]
        nll = torch.stack([nll_K[demonstrated_K].sum(), demonstrated_K.sum()])
        return loss, {"loss": loss.detach().float(), "nll": nll.detach().float()}
