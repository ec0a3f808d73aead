"""Llama, Qwen2 and Qwen3: SGLang's own classes, under the name its registry looks for."""

from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM

__all__ = ["EntryClass"]

EntryClass = [LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM]
