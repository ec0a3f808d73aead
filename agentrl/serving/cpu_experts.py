"""Experts that are shared out over an engine's ranks (`--sglang-ep-size`), on a CPU host.

SGLang marks the experts that a rank has not by the number -1. Its kernels leave those out; its
torch code for CPUs takes the number for an index. They get weight 0 here, which adds nothing: the
rank that has them adds what they say.
"""

from typing import Any

__all__ = ["register_experts"]


def register_experts() -> None:
    """Leave out the experts of other ranks, when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    place = "sglang.srt.layers.moe.fused_moe_native.moe_forward_native"
    HookRegistry.register(place, with_own_experts, HookType.AROUND)


def with_own_experts(original: Any, layer: Any, x: Any, chosen: Any, settings: Any) -> Any:
    """`original`, with what a token has `chosen` of this rank's experts: ids and weights, both
    [tokens, choices]."""
    elsewhere = chosen.topk_ids < 0
    if elsewhere.any():
        chosen = chosen._replace(
            topk_ids=chosen.topk_ids.masked_fill(elsewhere, 0),
            topk_weights=chosen.topk_weights.masked_fill(elsewhere, 0),
        )
    return original(layer, x, chosen, settings)
