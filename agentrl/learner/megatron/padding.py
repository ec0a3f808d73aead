"""Tokens that pad or fill up a micro-batch stay out of what keeps experts busy.

The auxiliary loss and the correction bias of a router count tokens. `PackedTokens` says which ones
of a micro-batch count, and every layer with experts tells its router, so that a layer that is
recomputed has those of its own micro-batch. megatron-core hands such a mask through the model
itself, but not to later stages of a pipeline as their tokens lie, and not to all layers that are
recomputed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

__all__ = ["PackedTokens", "leave_padding_out"]


@dataclass
class PackedTokens(PackedSeqParams):  # type: ignore[misc]
    """`padding_1L`: bool, which of the tokens that routers of this rank see are no tokens of the
    run, [1, L]; None: all are."""

    padding_1L: Tensor | None = None


def leave_padding_out(model: torch.nn.Module) -> None:
    """Have each layer with experts tell its router what is padding."""
    for layer in model.modules():
        if isinstance(layer, TransformerLayer) and layer.is_moe_layer:
            layer.register_forward_pre_hook(_tell, with_kwargs=True)


def _tell(_: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    packed = named.get("packed_seq_params")
    return args, named | {"padding_mask": getattr(packed, "padding_1L", None)}
