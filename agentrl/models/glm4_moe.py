"""GLM-4.5, 4.6 and 4.7: half of each head is rotated, the first layers are dense, the others have
experts behind a sigmoid router, and one that all tokens pass."""

from typing import Any

from msgspec.structs import asdict

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.experts import EXPERTS_FUSED, Experts, read_sigmoid_router, with_experts
from agentrl.models.family import Family, behind_the_layers
from agentrl.models.mtp import behind_the_decoder

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Architecture:
    # Unlike Llama's, its attention_bias leaves the output projection without a bias.
    decoder = read_decoder(
        config | {"attention_bias": False},
        add_qkv_bias=config.get("attention_bias", False),
        qk_layernorm=config.get("use_qk_norm", False),
        rotary_percent=0.5,
    )
    return Experts(**asdict(decoder), **read_sigmoid_router(config))


_PARTS = with_experts(PARTS)

FAMILY = Family(
    name="glm4-moe",
    architectures=("Glm4MoeForCausalLM",),
    read=_read,
    parts=_PARTS,
    is_passenger=behind_the_layers,
    mtp=behind_the_decoder(_PARTS),
    chat_formats=("glm45", "glm47"),
    defaults={"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
    tiny={
        **tiny("Glm4MoeForCausalLM", "glm4_moe"),
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    engine_fused={**EXPERTS_FUSED, **FUSED},
    engine_class="sglang.srt.models.glm4_moe:Glm4MoeForCausalLM",
    engine_ranks=True,
)
