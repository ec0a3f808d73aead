"""What the published files of latent-attention models say, and which relatives are refused."""

from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.models.latent import Latent
from agentrl.models.registry import describe_model, families

#: config.json of Kimi-K2-Instruct, but for what its loader alone reads.
KIMI_K2: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "model_type": "kimi_k2",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def read(config: dict[str, Any]) -> Latent:
    found = describe_model(config, None, source="config.json").architecture
    assert isinstance(found, Latent)
    return found


def test_kimi_k2_is_read_in_its_own_spelling() -> None:
    found = read(KIMI_K2)
    assert (found.rope_type, found.rotary_scaling_factor, found.beta_fast) == ("yarn", 32.0, 1.0)
    assert (found.mscale, found.mscale_all_dim, found.rotary_base) == (1.0, 1.0, 50000.0)
    assert (found.q_lora_rank, found.qk_head_dim, found.v_head_dim) == (1536, 128, 128)
    assert (found.num_moe_experts, found.moe_router_num_groups) == (384, None)
    assert found.moe_layer_freq == [0] + [1] * 60


@pytest.mark.parametrize(
    "flags",
    [
        {"moe_router_pre_softmax": True},
        {"moe_router_num_groups": 1, "moe_router_group_topk": 1},
        {"rotary_scaling_factor": 32.0, "multi_latent_attention": True},
    ],
    ids=["scores one by one", "a single group", "scaled"],
)
def test_flags_of_launch_scripts_agree_with_kimi_k2(flags: dict[str, Any]) -> None:
    """Sigmoid scores are taken one by one, and a single group is no group: as of other experts."""
    told = describe_model(KIMI_K2, None, source="config.json").architecture.flags()

    assert {name: told[name] for name in flags if name in told} == {
        name: value for name, value in flags.items() if name in told
    }
    assert "moe_router_pre_softmax" not in told


def test_glm_4_7_flash_has_its_dense_layers_by_either_spelling() -> None:
    config = {**families()["glm4-moe-lite"].tiny}
    del config["first_k_dense_replace"]
    assert read(config).moe_layer_freq == [0, 1]
    assert read({**config, "mlp_layer_types": ["dense", "dense"]}).moe_layer_freq == [0, 0]
    with pytest.raises(ConfigError, match=r"mlp_layer_types .* is not supported"):
        read({**config, "mlp_layer_types": ["sparse", "dense"]})


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("GlmMoeDsaForCausalLM", "GLM-5"), ("DeepseekV32ForCausalLM", r"DeepSeek-V3\.2")],
)
def test_sparse_attention_is_refused_by_the_name_of_its_model(architecture: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{architecture} \({name}\) .* no packed sequences"):
        read({**KIMI_K2, "architectures": [architecture]})
