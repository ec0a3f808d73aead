"""What the families of dense decoders share: keys of config.json, tensors, SGLang's fused names."""

from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.family import Part, halves, in_layer, qkv
from agentrl.models.rope import read_rope, rope_parameters

__all__ = ["FUSED", "PARTS", "read_decoder", "tiny"]

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
PARTS = (
    Part("embedding.word_embeddings.weight", ("model.embed_tokens.weight",)),
    in_layer("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    in_layer("self_attention.linear_qkv.weight", *(f"{n}.weight" for n in _QKV), split=qkv),
    in_layer("self_attention.linear_qkv.bias", *(f"{n}.bias" for n in _QKV), split=qkv),
    in_layer("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    in_layer("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
    in_layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    in_layer("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"),
    in_layer("mlp.linear_fc1.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", split=halves),
    in_layer("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
    Part("decoder.final_layernorm.weight", ("model.norm.weight",)),
    Part("output_layer.weight", ("lm_head.weight",)),
)

#: Names of modules, in the order of rows of SGLang's parameter.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}

#: Keys of config.json with the one value that is computed here; a file without the key has it.
_ONLY = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "attention_bias": False,
    "mlp_bias": False,
}


def read_decoder(
    config: dict[str, Any],
    *,
    qk_layernorm: bool = False,
    add_qkv_bias: bool = False,
    rotary_percent: float | None = None,
) -> Architecture:
    """The architecture of a decoder whose config.json has the usual keys. `rotary_percent`: which
    part of each head is rotated where the file does not say; None: all of it, in every member."""
    rope = rope_parameters(config)
    for key, only in _ONLY.items():
        if config.get(key, only) != only:
            raise ConfigError(f"{key} {config[key]} is not supported, only {only}")
    told = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if rotary_percent is None and told not in (None, 1):
        raise ConfigError(f"partial_rotary_factor {told} is not supported, only 1")
    heads = config["num_attention_heads"]
    return Architecture(
        name=config["architectures"][0],
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=heads,
        num_query_groups=config.get("num_key_value_heads") or heads,
        kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        rotary_base=float(rope["rope_theta"]),
        rotary_percent=float(told or rotary_percent or 1.0),
        qk_layernorm=qk_layernorm,
        add_qkv_bias=add_qkv_bias,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope=read_rope(config),
        num_nextn_predict_layers=config.get("num_nextn_predict_layers"),
    )


def tiny(architecture: str, model_type: str, head_dim: int = 16) -> dict[str, Any]:
    """config.json of a decoder of 20,000 parameters. The width of its MLP is a multiple of 32, to
    which SGLang pads it on a CPU host."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 50_000.0,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
    }
