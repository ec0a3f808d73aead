"""Qwen3-Next: delta nets in three layers of four, gated attention in the fourth, and experts in all
of them; the one that all tokens pass has a gate."""

from typing import Any

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.delta_net import (
    ATTENTION_FUSED,
    DELTA_NET,
    DELTA_NET_TINY,
    in_two,
    is_predictor,
    read_delta_net,
    read_delta_net_experts,
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
    sizes = read_delta_net(config, ("full_attention_interval", "rope_theta"))
    return read_delta_net_experts(config, decoder, sizes)


FAMILY = Family(
    name="qwen3-next",
    architectures=("Qwen3NextForCausalLM",),
    read=_read,
    is_passenger=is_predictor,
    chat_formats=("qwen", "qwen3-thinking"),
    parts=tuple({part.key: part for part in (*with_experts(PARTS), _IN, *DELTA_NET)}.values()),
    defaults={"num_key_value_heads": 2, "head_dim": 256},
    tiny={
        **tiny("Qwen3NextForCausalLM", "qwen3_next"),
        **DELTA_NET_TINY,
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
    engine_ranks=True,
)
