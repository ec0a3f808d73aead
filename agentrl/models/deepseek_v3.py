"""DeepSeek-V3 and R1, Moonlight, Kimi K2: latent attention, and experts that a sigmoid chooses."""

from agentrl.models.family import Family, behind_the_layers
from agentrl.models.latent import LATENT_FUSED, LATENT_PARTS, read_latent, tiny_latent
from agentrl.models.mtp import behind_the_decoder

__all__ = ["FAMILY"]

FAMILY = Family(
    name="deepseek-v3",
    architectures=("DeepseekV3ForCausalLM",),
    read=read_latent,
    parts=LATENT_PARTS,
    is_passenger=behind_the_layers,
    mtp=behind_the_decoder(LATENT_PARTS),
    chat_formats=("deepseek-r1", "deepseek-v3", "kimi-k2"),
    defaults={
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
    },
    tiny={
        **tiny_latent("DeepseekV3ForCausalLM", "deepseek_v3"),
        "n_group": 4,
        "topk_group": 2,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    engine_fused=LATENT_FUSED,
    engine_class="sglang.srt.models.deepseek_v2:DeepseekV3ForCausalLM",
    engine_ranks=True,
)
