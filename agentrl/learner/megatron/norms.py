"""The norm of all layers here."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with megatron-core's constructor. The mark on its weight makes
    `finalize_model_grads` sum the gradient over sequence-parallel ranks; megatron-core's own
    wrapper refuses sequence parallelism.

    Where the configuration says `layernorm_zero_centered_gamma`, it multiplies by 1 + weight, in
    float32."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._zero_centered = config.layernorm_zero_centered_gamma

    def forward(self, x: Tensor) -> Tensor:
        """Normalized over the last dimension; the type of `x`."""
        if not self._zero_centered:
            return super().forward(x)
        weight = 1.0 + self.weight.float()
        return rms_norm(x.float(), self.normalized_shape, weight, self.eps).to(x.dtype)
