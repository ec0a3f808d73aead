"""A gated delta net in the place of attention, for packed sequences and under tensor and context
parallelism: megatron-core's own takes no packed sequences and needs a package of CUDA kernels.

All weights are ordered by key heads, so a rank's share of each is one piece: the input projection
has for every key head its query, its key, its values, their gates and their two rates, and the
convolution has the first three. State and convolution begin anew with every sequence.

A context-parallel rank projects its own tokens. What is convolved and the rates then go to heads
(`head_exchange`), for the state of a head has to see all tokens of a sequence; gates stay, and what
the states answer comes back to them.

L = tokens of this context-parallel rank, T = of all of them, G = key heads of this tensor-parallel
rank.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.functional import pad, rms_norm, silu, softplus

from agentrl.learner.megatron.delta_rule import Chunks, chunks_of, delta_rule
from agentrl.learner.megatron.head_exchange import share_of, to_heads, to_tokens
from agentrl.models.delta_net import DeltaNetSizes

__all__ = ["GatedDeltaNet"]

#: Under the square root where queries and keys are brought to length 1.
_EPSILON = 1e-6


class GatedDeltaNet(MegatronModule):  # type: ignore[misc]
    """From hidden states [tokens of this rank, 1, hidden size] to the same."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        sizes: DeltaNetSizes,
        pg_collection: Any,
        **_unused: Any,
    ) -> None:
        super().__init__(config=config)
        self.sizes, self.group, self.cp_group = sizes, pg_collection.tp, pg_collection.cp
        heads, dtype = sizes.linear_num_value_heads, config.params_dtype
        shared: dict[str, Any] = {
            "config": config,
            "bias": False,
            "is_expert": False,
            "tp_group": self.group,
        }
        self.in_proj = ColumnParallelLinear(
            config.hidden_size,
            sizes.linear_num_key_heads * sum(sizes.projected),
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
            **shared,
        )
        channels = sizes.linear_num_key_heads * sum(sizes.convolved) // self.group.size()
        self.conv1d = _Convolution(channels, sizes.linear_conv_kernel_dim, dtype, self.cp_group)
        for name in ("dt_bias", "A_log"):
            share = torch.nn.Parameter(torch.empty(heads // self.group.size(), dtype=dtype))
            setattr(self, name, share)
        self.out_norm = _GatedNorm(config, sizes.linear_value_head_dim, self.group)
        self.out_proj = RowParallelLinear(
            heads * sizes.linear_value_head_dim,
            config.hidden_size,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            **shared,
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: Any = None,
        **_unused: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and no bias. Sequences are packed (thd)."""
        projected, _ = self.in_proj(hidden_states)
        projected_LG = projected[:, 0].unflatten(1, (-1, sum(self.sizes.projected)))
        convolved, gate, rates = projected_LG.split_with_sizes(
            [sum(self.sizes.convolved), self.sizes.convolved[-1], 2 * self.sizes.values_of_a_key],
            -1,
        )
        convolved, rates = (
            to_heads(x, packed_seq_params, self.cp_group) for x in (convolved, rates)
        )
        answers = self._answers(convolved, rates, chunks_of(packed_seq_params))
        answers = to_tokens(answers, packed_seq_params, self.cp_group)
        width = self.sizes.linear_value_head_dim
        out = self.out_norm(*(x.reshape(len(x), -1, width) for x in (answers, gate)))
        found: tuple[Tensor, Tensor | None] = self.out_proj(out.flatten(1)[:, None])
        return found

    def _answers(self, convolved: Tensor, rates: Tensor, chunks: Chunks) -> Tensor:
        """What the states answer, for each key head [T, heads, its values], from what is to be
        convolved and the rates of all tokens."""
        by_heads = (*convolved.shape[:2], -1)
        convolved = self.conv1d(convolved.flatten(1), chunks.within_T)
        query, key, value = convolved.view(by_heads).split_with_sizes(self.sizes.convolved, -1)
        query, key = (
            _unit(x).repeat_interleave(self.sizes.values_of_a_key, 1) for x in (query, key)
        )
        value = value.reshape(len(value), -1, self.sizes.linear_value_head_dim)
        beta, alpha = (x.flatten(1) for x in rates.chunk(2, -1))
        dt_bias, forgetting = (share_of(x, self.cp_group) for x in (self.dt_bias, self.A_log))
        decay = -forgetting.float().exp() * softplus(alpha.float() + dt_bias)
        answers = delta_rule(query, key, value, decay, beta.sigmoid(), chunks)
        return answers.to(value.dtype).view(by_heads)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> Any:
        """megatron-core's description of the weights; those that are here are cut over the
        tensor-parallel ranks."""
        found = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        cut = {
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "conv1d.weight": self.conv1d.weight,
        }
        found |= make_sharded_tensors_for_checkpoint(
            cut,
            prefix,
            dict.fromkeys(cut, 0),
            sharded_offsets,
            tp_group=self.group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        return found


class _Convolution(torch.nn.Module):
    """A causal convolution of each channel by itself, and SiLU. A context-parallel rank of `group`
    has all weights and convolves the channels of its share of the heads."""

    def __init__(self, channels: int, width: int, dtype: torch.dtype, group: Any) -> None:
        super().__init__()
        self._group = group
        self.weight = torch.nn.Parameter(torch.empty(channels, 1, width, dtype=dtype))

    def forward(self, x_TD: Tensor, within_T: Tensor) -> Tensor:
        """`within_T`: position of each token in its sequence, before which there is nothing."""
        *earlier, now = share_of(self.weight, self._group)[:, 0].unbind(-1)
        out = x_TD * now
        for back, weight in enumerate(reversed(earlier), start=1):
            before = pad(x_TD, (0, 0, back, 0))[: len(x_TD)]
            out = out + torch.where(within_T[:, None] >= back, before, 0.0) * weight
        return silu(out)


class _GatedNorm(torch.nn.Module):
    """RMSNorm of each value head, times SiLU of its gate. All tensor-parallel ranks have the whole
    weight and some of the heads, so its gradient is summed over them."""

    def __init__(self, config: Any, width: int, group: Any) -> None:
        super().__init__()
        self._epsilon, self._group = config.layernorm_epsilon, group
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=config.params_dtype))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Normalized over the last dimension; the type of `x`."""
        weight: Tensor = copy_to_tensor_model_parallel_region(self.weight, group=self._group)
        normal = rms_norm(x.float(), x.shape[-1:], None, self._epsilon).to(x.dtype)
        return (weight * normal * silu(gate.float())).to(x.dtype)


def _unit(x: Tensor) -> Tensor:
    """Of length 1 in the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)
