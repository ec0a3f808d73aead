"""Qwen3.5 as it is published, dense: its text is trained, what it sees with is kept."""

from agentrl.models import qwen3_5
from agentrl.models.nested import seeing

__all__ = ["FAMILY"]

FAMILY = seeing(
    qwen3_5.FAMILY,
    name="qwen3-5-vl",
    architecture="Qwen3_5ForConditionalGeneration",
    engine_class="sglang.srt.models.qwen3_5:Qwen3_5ForConditionalGeneration",
)
