"""Names that a tensor may have in Megatron's checkpoints beside the one that it has here.

Transformer Engine fuses a norm with the projection behind it, and the norm is named after the
projection. megatron-core's local layers have it apart: those of dense decoders take the fused names
in checkpoints, before experts too, where nothing is fused; those of latent attention take none.
Checkpoints of ours are named as with Transformer Engine; earlier ones of latent attention as the
local layers. All are read.

slime's first versions had a projection of their own for attention with gates, and another name for
it; its rows are those of megatron-core's.
"""

import re
from collections.abc import Container, Mapping
from typing import TypeVar

__all__ = ["with_our_names"]

T = TypeVar("T")

#: Within a layer: apart, and fused.
_PAIRS = (
    ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
    ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    ("self_attention.q_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight"),
    ("self_attention.kv_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"),
)
#: As slime's first versions called it, and as it is called.
_EARLIER = {
    f"self_attention.linear_qgkv.{what}": f"self_attention.linear_qkv.{what}"
    for what in ("weight", "layer_norm_weight")
}
_OTHER = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])} | _EARLIER
_ANY = "|".join(map(re.escape, _OTHER))
#: What stands before the name of a weight (`optimizer.state.exp_avg.`), its layer, and its name.
_NAMED = re.compile(rf"^(.*?)((?:decoder|mtp)\..*\.)({_ANY})$")


def with_our_names(tensors: Mapping[str, T], known: Container[str]) -> dict[str, T]:
    """`tensors` of a checkpoint by name, in which one that a model knows by its other name has
    that one. `known`: the names of the model's weights."""
    return {_ours(key, tensors, known): value for key, value in tensors.items()}


def _ours(key: str, tensors: Mapping[str, T], known: Container[str]) -> str:
    if (found := _NAMED.match(key)) is None:
        return key
    before, layer, name = found.groups()
    ours = layer + _OTHER[name]
    is_ours = ours in known and layer + name not in known
    return before + ours if is_ours and before + ours not in tensors else key
