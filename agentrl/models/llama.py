"""Llama: no bias, and queries and keys as they are."""

from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family

__all__ = ["FAMILY"]

FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    read=read_decoder,
    parts=PARTS,
    chat_formats=("deepseek-r1", "llama3"),
    tiny=tiny("LlamaForCausalLM", "llama"),
    engine_fused=FUSED,
    engine_class="sglang.srt.models.llama:LlamaForCausalLM",
)
