"""GLM-4 of April 2025 and GLM-Z1, dense: norms after attention and MLP too, half of each head is
rotated, in pairs of neighbours, and gate and up projection are one tensor."""

from typing import Any

from msgspec.structs import replace

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family, in_layer

__all__ = ["FAMILY"]

_OWN = (
    in_layer("post_self_attn_layernorm.weight", "post_self_attn_layernorm.weight"),
    in_layer("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"),
    in_layer("post_mlp_layernorm.weight", "post_mlp_layernorm.weight"),
)


def _read(config: dict[str, Any]) -> Architecture:
    # Unlike Llama's, its attention_bias leaves the output projection without a bias.
    decoder = read_decoder(
        config | {"attention_bias": False},
        add_qkv_bias=config.get("attention_bias", True),
        rotary_percent=0.5,
    )
    return replace(
        decoder, rotary_interleaved=True, post_self_attn_layernorm=True, post_mlp_layernorm=True
    )


FAMILY = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    read=_read,
    parts=tuple({part.key: part for part in (*PARTS, *_OWN)}.values()),
    chat_formats=("glm4",),
    defaults={"num_key_value_heads": 2, "head_dim": 128},
    tiny={
        **tiny("Glm4ForCausalLM", "glm4"),
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "pad_token_id": None,
    },
    engine_fused={"qkv_proj": FUSED["qkv_proj"]},
    engine_class="sglang.srt.models.glm4:Glm4ForCausalLM",
)
