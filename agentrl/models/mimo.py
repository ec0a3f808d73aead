"""MiMo: a Qwen2 with layers of multi-token prediction beside it."""

from typing import Any

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family
from agentrl.models.mtp import mtp_parts

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Architecture:
    # Unlike Llama's, its attention_bias leaves the output projection without a bias.
    return read_decoder(config | {"attention_bias": False}, add_qkv_bias=True)


def _is_passenger(name: str, _: Architecture) -> bool:
    return name.startswith("model.mtp_layers.")


FAMILY = Family(
    name="mimo",
    architectures=("MiMoForCausalLM",),
    read=_read,
    parts=PARTS,
    chat_formats=("qwen",),
    is_passenger=_is_passenger,
    mtp=mtp_parts(
        PARTS,
        "model.mtp_layers.{layer}.",
        enorm="token_layernorm",
        hnorm="hidden_layernorm",
        eh_proj="input_proj",
        final_layernorm="final_layernorm",
        is_hidden_first=True,
    ),
    defaults={"num_key_value_heads": 32},
    # transformers has no MiMo of its own; without those layers it is Qwen2.
    tiny=tiny("MiMoForCausalLM", "qwen2", head_dim=8),
    engine_fused=FUSED,
    engine_class="sglang.srt.models.mimo:MiMoForCausalLM",
)
