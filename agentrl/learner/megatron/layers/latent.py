"""A layer with multi-head latent attention: queries, keys and values come from narrow vectors that
are computed once for all heads (DeepSeek-V2, https://arxiv.org/abs/2405.04434).

The two projections down to these vectors are whole on every tensor-parallel rank. megatron-core's
local spec cuts them up by columns, and the gradient of the shared rotary key is then never summed
over the ranks, so that training goes wrong without an error.
"""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.post_training.modelopt.layers import Linear

from agentrl.learner.megatron.attention import PackedAttention
from agentrl.learner.megatron.norms import RMSNorm
from agentrl.models.architecture import Architecture

__all__ = ["layer"]

#: The names that norms have in checkpoints, as where Transformer Engine fuses them.
_FUSED = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}
_FUSED_MLP = {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}


def layer(architecture: Architecture, config: Any, index: int) -> Any:
    """The spec of layer `index`."""
    has_experts = architecture.has_experts(index)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if has_experts else None,
        qk_layernorm=True,
        multi_latent_attention=True,
        normalization="RMSNorm",
    )
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    attention.q_layernorm = attention.kv_layernorm = RMSNorm
    attention.linear_q_down_proj = attention.linear_kv_down_proj = Linear
    parts.sharded_state_dict_keys_map = _FUSED | ({} if has_experts else _FUSED_MLP)
    return spec
