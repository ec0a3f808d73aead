"""A layer with a gated delta net in the place of attention, or the usual one."""

from typing import Any

from megatron.core.transformer.spec_utils import ModuleSpec

from agentrl.learner.megatron.delta_net import GatedDeltaNet
from agentrl.learner.megatron.layers import decoder
from agentrl.models.architecture import Architecture

__all__ = ["layer"]


def layer(architecture: Architecture, config: Any, index: int) -> Any:
    """The spec of layer `index`."""
    spec = decoder.layer(architecture, config, index)
    sizes = architecture.delta_net  # type: ignore[attr-defined]
    if not sizes.has_attention(index):
        parts = spec.submodules
        parts.self_attention = ModuleSpec(module=GatedDeltaNet, params={"sizes": sizes})
        parts.sharded_state_dict_keys_map["input_layernorm."] = "self_attention.in_proj.layer_norm_"
    return spec
