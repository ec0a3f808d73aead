"""The usual layer: megatron-core's local one with packed attention and our norm, so that no
Transformer Engine, Apex or flash-attn is needed. Some layers have experts in the place of the MLP.
"""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

from agentrl.learner.megatron.attention import PackedAttention
from agentrl.learner.megatron.norms import RMSNorm
from agentrl.learner.megatron.sandwich import norm_outputs
from agentrl.models.architecture import Architecture

__all__ = ["layer"]


def layer(architecture: Architecture, config: Any, index: int) -> Any:
    """The spec of layer `index`."""
    has_experts = architecture.has_experts(index)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if has_experts else None,
        qk_layernorm=architecture.qk_layernorm,
        normalization="RMSNorm",
    )
    parts = spec.submodules
    if has_experts:
        # The norm before experts is fused into no projection, and Megatron's checkpoints say so.
        del parts.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if architecture.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    norm_outputs(parts, architecture)
    return spec
