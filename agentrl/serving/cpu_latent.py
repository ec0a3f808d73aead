"""What SGLang lacks for latent attention (DeepSeek's) on a CPU host that is not its own CPU engine.

Two things. Its rotary embedding for CPUs knows DeepSeek's YaRN alone and fails for positions that
are not scaled. And a backend whose name it does not know gets prefills in a form whose keys never
come into the cache, from which ours reads them; the absorbed form serves prefills and decodes.
Loaded by SGLang inside engine processes only.
"""

from typing import Any

from sglang.srt.layers.rotary_embedding import factory
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
    AttnForwardMethod,
)

from agentrl.serving.cpu import ATTENTION_BACKEND

__all__ = ["install"]

_of_cpu = factory.get_rope_cpu


def install() -> None:
    """Serve latent attention; again does nothing."""
    AttentionBackendRegistry.register(ATTENTION_BACKEND, lambda *_: AttnForwardMethod.MLA)
    factory.get_rope_cpu = _rope


def _rope(
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    is_neox_style: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    dtype: Any = None,
    partial_rotary_factor: float = 1.0,
    device: str | None = None,
) -> Any:
    given = (head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, dtype)
    if rope_scaling is None:
        return factory.get_rope(*given, partial_rotary_factor)
    return _of_cpu(*given, partial_rotary_factor, device)
