"""Mistral: a Llama that may see through a sliding window."""

from typing import Any

from msgspec.structs import replace

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Architecture:
    """A window of w tokens counts the token itself."""
    window = config["sliding_window"]
    return replace(read_decoder(config), window_size=(window - 1, 0) if window else None)


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    read=_read,
    parts=PARTS,
    chat_formats=("mistral-v3", "mistral-v7"),
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    tiny={**tiny("MistralForCausalLM", "mistral"), "sliding_window": None},
    engine_fused=FUSED,
    engine_class="sglang.srt.models.mistral:MistralForCausalLM",
)
