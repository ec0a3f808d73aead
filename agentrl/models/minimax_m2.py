"""MiniMax-M2: queries and keys are normalized over all heads, half of each head is rotated, and
every layer has experts behind a sigmoid router.

Refused: a config.json that leaves out what SGLang must be told, for an engine would then serve
another model without a word; what transformers writes of a model that it made is such a file.
"""

from typing import Any, ClassVar

from msgspec.structs import asdict

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.experts import Experts, with_experts
from agentrl.models.family import Family, behind_the_layers, halves, in_layer

__all__ = ["FAMILY"]

_MOE = "block_sparse_moe."
_ONE = f"{_MOE}experts.{{expert}}."
_OWN = (
    in_layer("self_attention.q_norm.weight", "self_attn.q_norm.weight"),
    in_layer("self_attention.k_norm.weight", "self_attn.k_norm.weight"),
    in_layer("mlp.router.weight", f"{_MOE}gate.weight"),
    in_layer("mlp.router.expert_bias", f"{_MOE}e_score_correction_bias"),
    in_layer(
        "mlp.experts.experts.linear_fc1.weight.{expert}",
        f"{_ONE}w1.weight",
        f"{_ONE}w3.weight",
        split=halves,
    ),
    in_layer("mlp.experts.experts.linear_fc2.weight.{expert}", f"{_ONE}w2.weight"),
)

#: Keys with the one value that is computed here, which SGLang does not take where they are missing.
_TOLD = {"use_qk_norm": True, "use_routing_bias": True, "scoring_func": "sigmoid"}
#: The same; a file without the key has it.
_ONLY = {"qk_norm_type": "per_layer", "shared_intermediate_size": 0}


class _MiniMax(Experts, frozen=True, kw_only=True):
    layer: ClassVar[str] = "whole_norm"


def _read(config: dict[str, Any]) -> Architecture:
    for key, only in _TOLD.items():
        if config.get(key) != only:
            found = f"is {config[key]}" if key in config else "is missing"
            raise ConfigError(f"{key} {found}; it must be {only}")
    for key, only in _ONLY.items():
        if config.get(key, only) != only:
            raise ConfigError(f"{key} {config[key]} is not supported, only {only}")
    if linear := {*(config.get("attn_type_list") or [])} - {1}:
        raise ConfigError(f"attn_type_list with {linear} is not supported, only 1")
    part = config["rotary_dim"] / config["head_dim"]
    decoder = read_decoder(
        {"partial_rotary_factor": part} | config,
        qk_layernorm=True,
        rotary_percent=part,
    )
    if decoder.rotary_percent != part:
        raise ConfigError(
            f"partial_rotary_factor {decoder.rotary_percent} is not supported beside a rotary_dim "
            f"of {config['rotary_dim']} of {config['head_dim']}"
        )
    return _MiniMax(
        **asdict(decoder),
        num_moe_experts=config["num_local_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["intermediate_size"],
        moe_layer_freq=[1] * decoder.num_layers,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
    )


FAMILY = Family(
    name="minimax-m2",
    architectures=("MiniMaxM2ForCausalLM",),
    read=_read,
    is_passenger=behind_the_layers,
    parts=tuple({part.key: part for part in (*with_experts(PARTS), *_OWN)}.values()),
    chat_formats=("minimax-m2",),
    defaults={"num_key_value_heads": 8, "rope_theta": 5e6},
    tiny={
        **tiny("MiniMaxM2ForCausalLM", "minimax_m2"),
        "rotary_dim": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "scoring_func": "sigmoid",
        "num_mtp_modules": 0,
    },
    engine_fused={
        "experts.w13_weight": ("experts.{expert}.w1.weight", "experts.{expert}.w3.weight"),
        "experts.w2_weight": ("experts.{expert}.w2.weight",),
        "qkv_proj": FUSED["qkv_proj"],
    },
    engine_class="sglang.srt.models.minimax_m2:MiniMaxM2ForCausalLM",
    engine_ranks=True,
)
