"""Projections whose output is normalized, for layers with a norm after attention and MLP as well as
before: megatron-core 0.16.1 has none. Megatron's checkpoints keep these norms in the layer."""

from typing import Any

from megatron.core.tensor_parallel.layers import RowParallelLinear
from torch import Tensor

from agentrl.learner.megatron.norms import RMSNorm
from agentrl.models.architecture import Architecture

__all__ = ["NormedRowParallelLinear", "norm_outputs"]


class NormedRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """The sum over tensor-parallel ranks, normalized."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **rest: Any) -> None:
        super().__init__(input_size, output_size, config=config, **rest)
        self.norm = RMSNorm(config, output_size, config.layernorm_epsilon)

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        """The output, and no bias that is still to be added."""
        out, bias = super().forward(input_)
        assert bias is None
        return self.norm(out), None


def norm_outputs(parts: Any, architecture: Architecture) -> None:
    """Add to the submodules of a layer the norms that the architecture has behind its parts."""
    keys = parts.sharded_state_dict_keys_map
    if architecture.post_self_attn_layernorm:
        parts.self_attention.submodules.linear_proj = NormedRowParallelLinear
        keys["self_attention.linear_proj.norm."] = "post_self_attn_layernorm."
    if architecture.post_mlp_layernorm:
        parts.mlp.submodules.linear_fc2 = NormedRowParallelLinear
        keys["mlp.linear_fc2.norm."] = "post_mlp_layernorm."
