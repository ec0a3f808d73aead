"""Qwen2 and Qwen2.5: queries, keys and values have a bias."""

from functools import partial

from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family

__all__ = ["FAMILY"]

FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    read=partial(read_decoder, add_qkv_bias=True),
    parts=PARTS,
    chat_formats=("deepseek-r1", "qwen"),
    defaults={"num_key_value_heads": 32},
    # SGLang knows no other width of its heads on a CPU host: hidden size by heads.
    tiny=tiny("Qwen2ForCausalLM", "qwen2", head_dim=8),
    engine_fused=FUSED,
    engine_class="sglang.srt.models.qwen2:Qwen2ForCausalLM",
)
