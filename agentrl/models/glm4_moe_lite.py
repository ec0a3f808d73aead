"""GLM-4.7-Flash: DeepSeek-V3's decoder, whose config.json may name the kind of each layer."""

from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.family import Family, behind_the_layers
from agentrl.models.latent import LATENT_FUSED, LATENT_PARTS, Latent, read_latent, tiny_latent
from agentrl.models.mtp import behind_the_decoder

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Latent:
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        return read_latent(config)
    dense = kinds.count("dense")
    if kinds != ["dense"] * dense + ["sparse"] * (config["num_hidden_layers"] - dense):
        raise ConfigError(
            f"mlp_layer_types {kinds} is not supported: engines take dense layers before sparse "
            "ones only, one kind for each layer"
        )
    return read_latent({**config, "first_k_dense_replace": dense})


FAMILY = Family(
    name="glm4-moe-lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    read=_read,
    parts=LATENT_PARTS,
    is_passenger=behind_the_layers,
    mtp=behind_the_decoder(LATENT_PARTS),
    chat_formats=("glm47",),
    defaults={
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.8,
        "first_k_dense_replace": 1,
    },
    tiny={
        **tiny_latent("Glm4MoeLiteForCausalLM", "glm4_moe_lite"),
        "qk_nope_head_dim": 24,
        "v_head_dim": 32,
        "pad_token_id": None,
    },
    engine_fused=LATENT_FUSED,
    engine_class="sglang.srt.models.glm4_moe_lite:Glm4MoeLiteForCausalLM",
    engine_ranks=True,
)
