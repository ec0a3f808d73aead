"""Phi-3: Llama's decoder, with queries, keys and values in one tensor, and gate and up projection
in another, in a checkpoint whose attention reaches over the whole context."""

from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import PARTS, read_decoder, tiny
from agentrl.models.family import Family, in_layer, qkv

__all__ = ["FAMILY"]

_FUSED = (
    in_layer("self_attention.linear_qkv.weight", *["self_attn.qkv_proj.weight"] * 3, split=qkv),
    in_layer("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"),
)


def read(config: dict[str, Any]) -> Architecture:
    """Refuses a sliding window, which SGLang's class does not compute."""
    if config.get("sliding_window") is not None:
        raise ConfigError(f"sliding_window {config['sliding_window']} is not supported, only null")
    return read_decoder(config)


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    read=read,
    parts=tuple({part.key: part for part in (*PARTS, *_FUSED)}.values()),
    tiny={
        **{k: v for k, v in tiny("Phi3ForCausalLM", "phi3").items() if k != "head_dim"},
        "sliding_window": None,
        "pad_token_id": None,
    },
    engine_class="sglang.srt.models.llama:Phi3ForCausalLM",
)
