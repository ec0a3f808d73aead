"""Qwen3.5 as it is published, with experts: its text is trained, what it sees with is kept."""

from agentrl.models import qwen3_5_moe
from agentrl.models.nested import seeing

__all__ = ["FAMILY"]

FAMILY = seeing(
    qwen3_5_moe.FAMILY,
    name="qwen3-5-moe-vl",
    architecture="Qwen3_5MoeForConditionalGeneration",
    engine_class="sglang.srt.models.qwen3_5:Qwen3_5MoeForConditionalGeneration",
)
