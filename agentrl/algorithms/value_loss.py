"""What a critic learns from: the squared distance of its values from returns, clipped.

Shape suffix: K = trained tokens.
"""

import torch
from torch import Tensor

__all__ = ["clipped_value_loss"]


def clipped_value_loss(
    values_K: Tensor, old_K: Tensor, returns_K: Tensor, value_clip: float
) -> tuple[Tensor, Tensor]:
    """`max((V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2)` of each token, and where the second
    is the larger: there V moved too far from V_old, and has no gradient.

    The squared error is L^VF of PPO: Schulman et al. 2017, equation 9,
    https://arxiv.org/abs/1707.06347, whose coefficient is here a learning rate of the critic's own.
    The clip is in no equation there: it is that of the authors' code, "PPO2", as Engstrom et al.
    2020, section 3, https://arxiv.org/abs/2005.12729, describe it. As in slime, without 1/2.
    """
    near_K = values_K.clamp(old_K - value_clip, old_K + value_clip)  # V itself within the range
    plain_K, clipped_K = (values_K - returns_K).square(), (near_K - returns_K).square()
    return torch.maximum(plain_K, clipped_K), clipped_K.detach() > plain_K.detach()
