"""`sft_loss`: the negative log-likelihood of demonstrated turns, and of their context at a weight.

    loss = -sum over labels of log pi(label) * c / D        c = 1 demonstrated, --prompt-loss-weight
                                                            for what the model only reads

D is the sum of all c of the step, or per dialogue as `--calculate-per-token-loss` says (see
`plan.py`). Suffixes: L = tokens of one dialogue, T = packed tokens, K = trained tokens.
"""

import numpy as np
import torch
from torch import Tensor

from agentrl.learner.backend import MicroBatch
from agentrl.learner.batch import BatchCounts, TrainSequence, shift
from agentrl.learner.plan import PlannedRow
from agentrl.learner.rows import Trajectory

__all__ = ["SupervisedLoss", "build_demonstration"]


def build_demonstration(
    planned: PlannedRow, trajectory: Trajectory, context_weight: float
) -> TrainSequence:
    """Columns of a dialogue, aligned with its labels:

    mask, scored: bool, has a loss. demonstrated: bool. weights: float32, c / D of the label.
    """
    demonstrated_L = trajectory.demonstrated_L
    weights_L = np.where(demonstrated_L, 1.0, context_weight).astype(np.float32)
    weights_L = shift(weights_L * np.float32(planned.weight), 0.0)
    mask_L = weights_L != 0
    return TrainSequence(
        tokens_L=trajectory.tokens_L,
        columns={
            "mask": mask_L,
            "scored": mask_L,
            "demonstrated": shift(demonstrated_L, False),
            "weights": weights_L,
        },
        counts=BatchCounts(num_trained=int(mask_L.sum())),
        max_trained_age=-1,
    )


class SupervisedLoss:
    """A `LossFn`. Columns read: mask, demonstrated, weights."""

    def __call__(
        self, batch: MicroBatch, logprobs_T: Tensor, entropy_T: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        del entropy_T
        columns = batch.columns
        trained_K = columns["mask"].nonzero().squeeze(1)
        nll_K = -logprobs_T[trained_K].float()
        loss = (nll_K * columns["weights"][trained_K]).sum()
        demonstrated_K = columns["demonstrated"][trained_K]
        nll = torch.stack([nll_K[demonstrated_K].sum(), demonstrated_K.sum()])
        return loss, {"loss": loss.detach().float(), "nll": nll.detach().float()}
