"""Qwen3: queries and keys are normalized."""

from functools import partial

from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.family import Family

__all__ = ["FAMILY"]

FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    read=partial(read_decoder, qk_layernorm=True),
    parts=PARTS,
    chat_formats=("qwen3", "qwen3-thinking"),
    defaults={"num_key_value_heads": 32, "head_dim": 128},
    tiny=tiny("Qwen3ForCausalLM", "qwen3"),
    engine_fused=FUSED,
    engine_class="sglang.srt.models.qwen3:Qwen3ForCausalLM",
    engine_ranks=True,
    exact=True,
)
