"""Multi-head latent attention: what such a decoder has beyond the usual one, and its tensors. All
that are published have experts.

Refused, by name: rotary scaling that transformers and SGLang read differently, for then no weights
are right for both. All norms have the epsilon of config.json, as in SGLang and Megatron;
transformers gives the two inside the attention 1e-6 whatever the file says.
"""

from typing import Any, ClassVar, Literal

import msgspec

from agentrl.errors import ConfigError
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.experts import EXPERTS_FUSED, Experts, read_sigmoid_router, with_experts
from agentrl.models.family import in_layer
from agentrl.models.rope import LinearRope, Rope, YarnRope, rope_parameters

__all__ = ["LATENT_FUSED", "LATENT_PARTS", "Latent", "read_latent", "tiny_latent"]

_DENSE = {part.key.removeprefix("decoder.layers.{layer}."): part for part in PARTS}
_Q_UP, _KV_UP = "self_attention.linear_q_up_proj", "self_attention.linear_kv_up_proj"
_PARTS = (
    _DENSE["embedding.word_embeddings.weight"],
    in_layer("input_layernorm.weight", "input_layernorm.weight"),
    in_layer("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    # The next two are one tensor of SGLang's, so they stand together.
    in_layer("self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"),
    in_layer("self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    in_layer(f"{_Q_UP}.layer_norm_weight", "self_attn.q_a_layernorm.weight"),
    in_layer(f"{_Q_UP}.weight", "self_attn.q_b_proj.weight"),
    in_layer(f"{_KV_UP}.layer_norm_weight", "self_attn.kv_a_layernorm.weight"),
    in_layer(f"{_KV_UP}.weight", "self_attn.kv_b_proj.weight"),
    _DENSE["self_attention.linear_proj.weight"],
    _DENSE["mlp.linear_fc1.layer_norm_weight"],
    _DENSE["mlp.linear_fc1.weight"],
    _DENSE["mlp.linear_fc2.weight"],
    _DENSE["decoder.final_layernorm.weight"],
    _DENSE["output_layer.weight"],
)

LATENT_PARTS = with_experts(_PARTS)

LATENT_FUSED = {
    **EXPERTS_FUSED,
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": FUSED["gate_up_proj"],
}


class Latent(Experts, frozen=True, kw_only=True):
    """A decoder with latent attention, under the names of megatron-core's MLATransformerConfig.
    `rotary_scaling_factor` enters the scale of the softmax, so it is 1 where nothing is scaled. The
    gradient of the shared rotary key is whole on each of several tensor-parallel ranks only with
    sequence parallelism, without which experts are refused there as well."""

    layer: ClassVar[str] = "latent"
    config_class: ClassVar[str] = "MLATransformerConfig"

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    rope_type: Literal["rope", "yarn"] = "rope"
    rotary_scaling_factor: float = 1.0
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    def flags(self) -> dict[str, Any]:
        """As of the usual decoder. Latent attention has heads of other widths than --kv-channels
        says and no bias, and what is not scaled has no magnitude: Megatron reads none of these."""
        told = super().flags() | {
            "multi_latent_attention": True,
            "rotary_scaling_factor": self.rotary_scaling_factor,
        }
        unread = {"kv_channels", "add_qkv_bias"}
        if self.rope_type == "rope":
            unread |= {"mscale", "mscale_all_dim"}
        return {name: value for name, value in told.items() if name not in unread}


def read_latent(config: dict[str, Any]) -> Latent:
    """The architecture of a decoder with latent attention, whose config.json has DeepSeek-V3's
    keys."""
    heads = config["num_attention_heads"]
    for key, only in (
        ("rope_interleave", True),
        ("num_key_value_heads", heads),
        ("moe_layer_freq", 1),
    ):
        if config.get(key, only) != only:
            raise ConfigError(f"{key} {config[key]} is not supported, only {only}")
    decoder = read_decoder(config, qk_layernorm=True)
    return Latent(
        **msgspec.structs.asdict(decoder),
        **read_sigmoid_router(config),
        q_lora_rank=config.get("q_lora_rank"),
        kv_lora_rank=config["kv_lora_rank"],
        qk_head_dim=config["qk_nope_head_dim"],
        qk_pos_emb_head_dim=config["qk_rope_head_dim"],
        v_head_dim=config["v_head_dim"],
        **_scaled(decoder.rope, rope_parameters(config)),
    )


def _scaled(rope: Rope, given: dict[str, Any]) -> dict[str, Any]:
    """The fields that say how rotary positions are scaled. Where only one magnitude is given, or a
    range is not rounded, transformers, SGLang and megatron-core do not agree what is meant."""
    if rope == LinearRope():
        return {}
    if not isinstance(rope, YarnRope) or not rope.truncate:
        raise ConfigError(
            f"rope parameters {given} are not supported with latent attention, only rope type "
            "default, and yarn with truncate True"
        )
    both = bool(rope.mscale and rope.mscale_all_dim)
    if not both and (rope.mscale_all_dim or rope.mscale not in (0, 1)):
        raise ConfigError(
            f"rope type yarn with mscale {given.get('mscale')} and mscale_all_dim "
            f"{given.get('mscale_all_dim')} is not supported: transformers and SGLang read it "
            "differently; give both or neither"
        )
    return {
        "rope_type": "yarn",
        "rotary_scaling_factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "mscale": rope.mscale or 1.0,
        "mscale_all_dim": rope.mscale_all_dim,
    }


def tiny_latent(architecture: str, model_type: str) -> dict[str, Any]:
    """config.json of a small decoder with latent attention, a dense layer and one of experts."""
    usual = tiny(architecture, model_type)
    del usual["head_dim"]
    return {
        **usual,
        "num_key_value_heads": usual["num_attention_heads"],
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        # SGLang asks for these, and no configuration that transformers writes has them.
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
    }
