"""Mistral: Llama's decoder, in a checkpoint whose attention reaches over the whole context."""

from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family

__all__ = ["FAMILY"]


def read(config: dict[str, Any]) -> Architecture:
    """Refuses a sliding window, which nothing here computes."""
    if config.get("sliding_window") is not None:
        raise ConfigError(f"sliding_window {config['sliding_window']} is not supported, only null")
    return read_decoder(config)


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    read=read,
    parts=PARTS,
    tiny={**tiny("MistralForCausalLM", "mistral"), "sliding_window": None},
    engine_fused=FUSED,
    engine_class="sglang.srt.models.mistral:MistralForCausalLM",
)
