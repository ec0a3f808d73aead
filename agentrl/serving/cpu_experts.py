"""Experts that are shared out over an engine's ranks (`--sglang-ep-size`), on a CPU host.

SGLang marks the experts that a rank has not by the number -1. Its kernels leave those out; its
torch code for CPUs takes the number for an index. It is asked for the rank's own experts alone
here, each choice of a token as a row of its own.
"""

from typing import Any

from torch import Tensor, zeros_like

__all__ = ["register_experts"]


def register_experts() -> None:
    """Leave out the experts of other ranks, when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    place = "sglang.srt.layers.moe.fused_moe_native.moe_forward_native"
    HookRegistry.register(place, with_own_experts, HookType.AROUND)


def with_own_experts(original: Any, layer: Any, x: Tensor, chosen: Any, settings: Any) -> Tensor:
    """What this rank's experts add to each row of `x` [tokens, hidden]: `original` for those that
    the tokens have `chosen`, whose ids and weights are [tokens, choices]."""
    own = chosen.topk_ids >= 0
    if own.all():
        every: Tensor = original(layer, x, chosen, settings)
        return every
    tokens = own.nonzero(as_tuple=True)[0]
    alone = chosen._replace(
        topk_ids=chosen.topk_ids[own][:, None], topk_weights=chosen.topk_weights[own][:, None]
    )
    added = zeros_like(x)
    if len(tokens):
        added.index_add_(0, tokens, original(layer, x[tokens], alone, settings))
    return added
