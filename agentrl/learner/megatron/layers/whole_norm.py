"""A layer whose queries are normalized as one vector of all heads, and its keys too.

megatron-core normalizes each head by itself. Under tensor parallelism a rank has some of the heads
and their share of the weight; the sum of squares goes over all ranks. The norms are not called
`q_layernorm`: megatron-core sums gradients of that name over the ranks, as those of copies.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from agentrl.learner.megatron.layers import decoder
from agentrl.models.architecture import Architecture

__all__ = ["layer"]


def layer(architecture: Architecture, config: Any, index: int) -> Any:
    """The spec of layer `index`."""
    spec = decoder.layer(architecture, config, index)
    attention = spec.submodules.self_attention
    attention.module = _Attention
    attention.submodules.q_layernorm = attention.submodules.k_layernorm = None
    return spec


class _Attention(SelfAttention):  # type: ignore[misc]
    """Self-attention with the two norms."""

    def __init__(self, config: Any, *args: Any, **rest: Any) -> None:
        super().__init__(config, *args, **rest)
        group = self.pg_collection.tp
        self.q_norm = _WholeNorm(config, config.num_attention_heads, group)
        self.k_norm = _WholeNorm(config, config.num_query_groups, group)

    def get_query_key_value_tensors(self, *args: Any, **rest: Any) -> tuple[Tensor, ...]:
        """Queries, keys and values, each [L, 1, heads of this rank, width of a head]."""
        query, key, value = super().get_query_key_value_tensors(*args, **rest)
        return self.q_norm(query), self.k_norm(key), value


class _WholeNorm(torch.nn.Module):
    """RMSNorm over all of `num_heads` heads, of which this rank has its share."""

    def __init__(self, config: Any, num_heads: int, group: Any) -> None:
        super().__init__()
        self._width, self._group = num_heads * config.kv_channels, group
        self._epsilon = config.layernorm_epsilon
        share = torch.ones(self._width // group.size(), dtype=config.params_dtype)
        self.weight = torch.nn.Parameter(share)

    def forward(self, heads: Tensor) -> Tensor:
        """In float32; the same shape and type as `heads` [..., heads, width of a head]."""
        share = heads.flatten(-2).float()
        squares = share.square().sum(-1, keepdim=True)
        # Every rank's output depends on the sum, so its gradient is summed over the ranks as well.
        squares = reduce_from_tensor_model_parallel_region(squares, group=self._group)
        squares = copy_to_tensor_model_parallel_region(squares, group=self._group)
        normal = share * torch.rsqrt(squares / self._width + self._epsilon)
        return (self.weight * normal.to(heads.dtype)).view(heads.shape)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> Any:
        """megatron-core's description of the weight, cut over the tensor-parallel ranks."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=self._group,
            dp_cp_group=metadata["dp_cp_group"],
        )
