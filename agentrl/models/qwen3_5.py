"""Qwen3.5 without eyes, dense: delta nets in three layers of four, gated attention in the fourth.

Its projections into a delta net are four tensors, its rotary base stands in `rope_parameters`, and
attention has three positions for a token, which are one where all tokens are text.
"""

from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.delta_net import (
    ATTENTION_FUSED,
    DELTA_NET,
    DELTA_NET_TINY,
    DeltaNetDecoder,
    DeltaNetSizes,
    gated,
    in_six,
    is_predictor,
    read_delta_net,
)
from agentrl.models.family import Family, in_layer
from agentrl.models.rope import rope_parameters

__all__ = ["FAMILY", "QWEN35_FUSED", "QWEN35_NET", "QWEN35_TINY", "read_qwen35"]

#: Tensors of layers with delta nets, and of those with gated attention.
QWEN35_NET = (
    in_layer(
        "self_attention.in_proj.weight",
        *["linear_attn.in_proj_qkv.weight"] * 3,
        *(f"linear_attn.in_proj_{name}.weight" for name in "zba"),
        split=in_six,
    ),
    *DELTA_NET,
)
QWEN35_FUSED = {
    **ATTENTION_FUSED,
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "gate_up_proj": FUSED["gate_up_proj"],
}
#: What a small config.json has beside the usual keys.
QWEN35_TINY = {
    **DELTA_NET_TINY,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 50_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
#: Keys with the one value that transformers computes whatever they say; SGLang reads them.
_ONLY = {"attn_output_gate": True, "is_causal": True, "norm_topk_prob": True}


def read_qwen35(config: dict[str, Any]) -> tuple[Architecture, DeltaNetSizes]:
    """The decoder that a config.json describes, and the sizes of its delta nets."""
    for key, only in _ONLY.items():
        if config.get(key, only) != only:
            raise ConfigError(f"{key} {config[key]} is not supported, only {only}")
    if "rope_theta" not in (config | (config.get("rope_parameters") or {})):
        raise ConfigError("rope_theta is missing; add it to rope_parameters")
    rope = rope_parameters(config)
    if rope["rope_type"] != "default":
        raise ConfigError(
            f"rope type {rope['rope_type']} is not supported beside three positions for each token"
        )
    return read_decoder(config, qk_layernorm=True, rotary_percent=0.25), read_delta_net(config)


def _read(config: dict[str, Any]) -> Architecture:
    decoder, sizes = read_qwen35(config)
    return DeltaNetDecoder(**gated(decoder), delta_net=sizes)


FAMILY = Family(
    name="qwen3-5",
    architectures=("Qwen3_5ForCausalLM",),
    read=_read,
    is_passenger=is_predictor,
    parts=tuple({part.key: part for part in (*PARTS, *QWEN35_NET)}.values()),
    defaults={"num_key_value_heads": 4, "head_dim": 256},
    tiny={**tiny("Qwen3_5ForCausalLM", "qwen3_5_text"), **QWEN35_TINY},
    chat_formats=("qwen3-5",),
    engine_fused=QWEN35_FUSED,
    engine_class="sglang.srt.models.qwen3_5_text:Qwen3_5ForCausalLM",
)
