"""Settings of the learner's flags, and an architecture of Qwen3's config.json to hold them
against."""

from typing import Any

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.models import Architecture
from agentrl.models.registry import describe_model

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def settings(ranks: int = 8, **megatron: Any) -> MegatronSettings:
    return MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron))


def architecture(**changes: Any) -> Architecture:
    return describe_model(QWEN3 | changes, None, source="config.json").architecture
