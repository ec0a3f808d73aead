"""Qwen3-Next: delta nets in three layers of four, gated attention in the fourth, and experts in all
of them; the one that all tokens pass has a gate."""

from typing import Any

from msgspec.structs import asdict

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.delta_net import (
    ATTENTION_FUSED,
    DELTA_NET,
    DeltaNetExperts,
    in_two,
    is_predictor,
    read_delta_net,
)
from agentrl.models.experts import EXPERTS_FUSED, with_experts
from agentrl.models.family import Family, in_layer

__all__ = ["FAMILY"]

_IN = in_layer(
    "self_attention.in_proj.weight",
    "linear_attn.in_proj_qkvz.weight",
    "linear_attn.in_proj_ba.weight",
    split=in_two,
)


def _read(config: dict[str, Any]) -> Architecture:
    decoder = read_decoder(config, qk_layernorm=True, rotary_percent=0.25)
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"mlp_only_layers {config.get('mlp_only_layers')} with decoder_sparse_step "
            f"{config.get('decoder_sparse_step', 1)} is not supported, only experts in all layers"
        )
    return DeltaNetExperts(
        **asdict(decoder) | {"attention_output_gate": True, "layernorm_zero_centered_gamma": True},
        delta_net=read_delta_net(config),
        num_moe_experts=config["num_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_layer_freq=[1] * decoder.num_layers,
        moe_router_pre_softmax=not config.get("norm_topk_prob", True),
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
    )


FAMILY = Family(
    name="qwen3-next",
    architectures=("Qwen3NextForCausalLM",),
    read=_read,
    is_passenger=is_predictor,
    parts=tuple({part.key: part for part in (*with_experts(PARTS), _IN, *DELTA_NET)}.values()),
    tiny={
        **tiny("Qwen3NextForCausalLM", "qwen3_next"),
        # With larger weights sums in another order are further off than the bounds of tests.
        "initializer_range": 0.03,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    engine_fused={**EXPERTS_FUSED, **ATTENTION_FUSED, "gate_up_proj": FUSED["gate_up_proj"]},
    engine_class="sglang.srt.models.qwen3_next:Qwen3NextForCausalLM",
)
