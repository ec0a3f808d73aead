"""SGLang platform that runs models with plain torch operators on the host's CPU.

Loaded by SGLang inside engine processes only. Every capability keeps its conservative default, so
SGLang takes its torch-native allocators and launches no Triton kernel and no graph.
"""

import os
from functools import cache
from typing import Any

import torch
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from agentrl.serving.cpu import ATTENTION_BACKEND, EXACT

__all__ = ["HostPlatform"]


_module_of = torch.get_device_module


@cache
def _device_module(device: torch.device | str | None = None) -> Any:
    """As torch's, which names CUDA where it was built with CUDA, though the host has no GPU."""
    return torch.cpu if device is None else _module_of(device)


class HostPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """Memory, device and gloo questions are answered by SGLang's CPU mixin; this class chooses the
    operators."""

    _enum = PlatformEnum.OOT

    def __init__(self) -> None:
        super().__init__()
        # SGLang makes the platform before it parses the arguments.
        if ATTENTION_BACKEND not in ATTENTION_BACKEND_CHOICES:
            ATTENTION_BACKEND_CHOICES.append(ATTENTION_BACKEND)
        torch.get_device_module = _device_module

    def init_backend(self) -> None:
        # Not at the top: these modules ask SGLang which platform they run on.
        from sglang.srt.layers.attention.attention_registry import register_attention_backend
        from sglang.srt.layers.sampler import register_sampler_backend

        from agentrl.serving import cpu_data_parallel, cpu_latent
        from agentrl.serving.cpu_backends import BatchedAttnBackend, InversionSampler

        attention, sampler = BatchedAttnBackend, InversionSampler
        if EXACT in os.environ:
            from agentrl.serving.cpu_exact import ExactAttnBackend, ExactSampler

            attention, sampler = ExactAttnBackend, ExactSampler
        register_attention_backend(ATTENTION_BACKEND)(attention)
        # SGLang takes no other name on a CPU.
        register_sampler_backend("pytorch", sampler)
        cpu_latent.install()
        cpu_data_parallel.install()

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def is_pin_memory_available(self, device: torch.device | None = None) -> bool:
        return False

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU
