"""What the advantage of each token loses for its distance from another model."""

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.rows import Row
from agentrl.columns import TEACHER_LOGPROBS
from agentrl.config.run import RunConfig

__all__ = ["kl_penalty", "teacher_column"]


def kl_penalty(cfg: RunConfig, row: Row, coefficient: float, model: str) -> npt.NDArray[np.float64]:
    """`-coefficient (log pi - log pi_model)` of each trained token, and 0 elsewhere; float64 [L].
    pi is what the loss takes its ratio to: the policy at the start of the iteration, or the engine
    (`--use-rollout-logprobs`). `model`: the column that is compared with.

    Of a reference: Ouyang et al. 2022, equation 2, https://arxiv.org/abs/2203.02155. Of a teacher:
    Agarwal et al. 2023, section 3 (reverse KL on the policy's own tokens),
    https://arxiv.org/abs/2306.13649; there it is minimized over the whole vocabulary, and here, as
    a part of the advantage, on the sampled token.
    """
    if coefficient == 0:
        return np.zeros(len(row.tokens_L))
    columns = row.columns
    policy_L = columns["mu" if cfg.use_rollout_logprobs else "prox"].astype(np.float64)
    penalty_L = -coefficient * (policy_L - columns[model])
    found: npt.NDArray[np.float64] = np.where(columns["mask"], penalty_L, 0.0)
    return found


def teacher_column(cfg: RunConfig) -> str:
    """Where the log-probabilities of the teacher of `--use-opd` stand: in the column of a pass, or
    in one that workers wrote."""
    return TEACHER_LOGPROBS.name if cfg.has_served_teacher else "teacher"
