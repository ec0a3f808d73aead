"""The shapes that the tensors of a model have, as its config.json implies them: no weights are
read, and neither torch nor megatron-core is imported.

`wholes_of` names them as megatron-core does, layer by layer, `shapes_of` as they lie in a Hugging
Face model. They are those of what the learner builds (a test compares them, family by family). A
part of a family's own is left out: the learner compares that.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from agentrl.config.freezing import name_of
from agentrl.config.weights import Shapes
from agentrl.models.architecture import Architecture
from agentrl.models.family import Family, Part
from agentrl.models.registry import Model

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["is_complete", "parameters_of", "shapes_of", "wholes_of"]

Shape = tuple[int, ...]
_LAYER = "decoder.layers.{layer}."
#: A tensor of a layer of multi-token prediction.
_OF_MTP = re.compile(r"mtp\.layers\.\d+\.(.+)")
#: How names end of tensors that are no parameters: no gradient moves them.
_BUFFERS = (".expert_bias",)
#: The name of a tensor whose first axis is that of the experts.
_OF_ALL_EXPERTS = re.compile(r"\.experts\.experts\.\w+\.(weight|bias)$")


class _Layer:
    """A layer as the rules below see it: sizes of its architecture, None for what it lacks."""

    def __init__(self, architecture: Architecture, index: int) -> None:
        self._architecture = architecture
        self.has_experts = architecture.has_experts(index)
        delta_net = getattr(architecture, "delta_net", None)
        self.net = None if delta_net is None or delta_net.has_attention(index) else delta_net

    def __getattr__(self, name: str) -> Any:
        return getattr(self._architecture, name, None)

    @property
    def is_latent(self) -> bool:
        return self._architecture.layer == "latent"

    @property
    def has_whole_norm(self) -> bool:
        return self._architecture.layer == "whole_norm"

    @property
    def has_biased_experts(self) -> bool:
        return self.has_experts and self.add_bias_linear

    @property
    def attends_plainly(self) -> bool:
        """With queries, keys and values of one projection."""
        return self.net is None and not self.is_latent

    @property
    def projected(self) -> int:
        """Rows of the projection of queries, their gates, keys and values."""
        return self.queries * (2 if self.attention_output_gate else 1) + 2 * self.keys

    @property
    def queries(self) -> int:
        width = self.qk_head_dim + self.qk_pos_emb_head_dim if self.is_latent else self.kv_channels
        return int(self.num_attention_heads * width)

    @property
    def keys(self) -> int:
        return int(self.num_query_groups * self.kv_channels)

    @property
    def values(self) -> int:
        """Numbers that the heads give back for a token."""
        width = self.v_head_dim if self.is_latent else self.kv_channels
        return int(self.num_attention_heads * width)


_Rule = Callable[[_Layer], Shape | None]


def _when(has: Callable[[_Layer], Any], shape: Callable[[_Layer], Shape]) -> _Rule:
    return lambda layer: shape(layer) if has(layer) else None


def _of_net(shape: Callable[[Any, _Layer], Shape]) -> _Rule:
    return lambda layer: None if layer.net is None else shape(layer.net, layer)


def _hidden(layer: _Layer) -> Shape:
    return (layer.hidden_size,)


def _has_norm_of_heads(layer: _Layer) -> bool:
    return bool(layer.qk_layernorm) and layer.attends_plainly and not layer.has_whole_norm


#: The tensors of a layer; None where a layer has none of the name.
_RULES: dict[str, _Rule] = {
    "input_layernorm.weight": _when(lambda x: x.is_latent, _hidden),
    "self_attention.linear_qkv.layer_norm_weight": _when(lambda x: x.attends_plainly, _hidden),
    "self_attention.linear_qkv.weight": _when(
        lambda x: x.attends_plainly, lambda x: (x.projected, x.hidden_size)
    ),
    "self_attention.linear_qkv.bias": _when(
        lambda x: x.add_qkv_bias and x.attends_plainly, lambda x: (x.projected,)
    ),
    "self_attention.q_layernorm.weight": _when(_has_norm_of_heads, lambda x: (x.kv_channels,)),
    "self_attention.k_layernorm.weight": _when(_has_norm_of_heads, lambda x: (x.kv_channels,)),
    "self_attention.q_norm.weight": _when(lambda x: x.has_whole_norm, lambda x: (x.queries,)),
    "self_attention.k_norm.weight": _when(lambda x: x.has_whole_norm, lambda x: (x.keys,)),
    "self_attention.linear_q_proj.weight": _when(
        lambda x: x.is_latent and not x.q_lora_rank, lambda x: (x.queries, x.hidden_size)
    ),
    "self_attention.linear_q_down_proj.weight": _when(
        lambda x: x.q_lora_rank, lambda x: (x.q_lora_rank, x.hidden_size)
    ),
    "self_attention.linear_q_up_proj.layer_norm_weight": _when(
        lambda x: x.q_lora_rank, lambda x: (x.q_lora_rank,)
    ),
    "self_attention.linear_q_up_proj.weight": _when(
        lambda x: x.q_lora_rank, lambda x: (x.queries, x.q_lora_rank)
    ),
    "self_attention.linear_kv_down_proj.weight": _when(
        lambda x: x.is_latent,
        lambda x: (x.kv_lora_rank + x.qk_pos_emb_head_dim, x.hidden_size),
    ),
    "self_attention.linear_kv_up_proj.layer_norm_weight": _when(
        lambda x: x.is_latent, lambda x: (x.kv_lora_rank,)
    ),
    "self_attention.linear_kv_up_proj.weight": _when(
        lambda x: x.is_latent,
        lambda x: (x.num_attention_heads * (x.qk_head_dim + x.v_head_dim), x.kv_lora_rank),
    ),
    "self_attention.linear_proj.weight": _when(
        lambda x: x.net is None, lambda x: (x.hidden_size, x.values)
    ),
    "self_attention.linear_proj.bias": _when(
        lambda x: x.add_bias_linear and x.net is None, _hidden
    ),
    "self_attention.core_attention.softmax_offset": _when(
        lambda x: x.softmax_type == "learnable", lambda x: (x.num_attention_heads,)
    ),
    "self_attention.in_proj.layer_norm_weight": _when(lambda x: x.net, _hidden),
    "self_attention.in_proj.weight": _of_net(
        lambda net, x: (net.linear_num_key_heads * sum(net.projected), x.hidden_size)
    ),
    "self_attention.conv1d.weight": _of_net(
        lambda net, _: (
            net.linear_num_key_heads * sum(net.convolved),
            1,
            net.linear_conv_kernel_dim,
        )
    ),
    "self_attention.dt_bias": _of_net(lambda net, _: (net.linear_num_value_heads,)),
    "self_attention.A_log": _of_net(lambda net, _: (net.linear_num_value_heads,)),
    "self_attention.out_norm.weight": _of_net(lambda net, _: (net.linear_value_head_dim,)),
    "self_attention.out_proj.weight": _of_net(
        lambda net, x: (x.hidden_size, net.linear_num_value_heads * net.linear_value_head_dim)
    ),
    "mlp.shared_experts.gate_weight": _when(
        lambda x: x.moe_shared_expert_gate, lambda x: (1, x.hidden_size)
    ),
    "post_self_attn_layernorm.weight": _when(lambda x: x.post_self_attn_layernorm, _hidden),
    "post_mlp_layernorm.weight": _when(lambda x: x.post_mlp_layernorm, _hidden),
    "mlp.linear_fc1.layer_norm_weight": _when(lambda x: not x.has_experts, _hidden),
    "mlp.linear_fc1.weight": _when(
        lambda x: not x.has_experts, lambda x: (2 * x.ffn_hidden_size, x.hidden_size)
    ),
    "mlp.linear_fc2.weight": _when(
        lambda x: not x.has_experts, lambda x: (x.hidden_size, x.ffn_hidden_size)
    ),
    "pre_mlp_layernorm.weight": _when(lambda x: x.has_experts, _hidden),
    "mlp.router.weight": _when(
        lambda x: x.has_experts, lambda x: (x.num_moe_experts, x.hidden_size)
    ),
    "mlp.router.expert_bias": _when(
        lambda x: x.has_experts and x.moe_router_enable_expert_bias,
        lambda x: (x.num_moe_experts,),
    ),
    "mlp.router.bias": _when(lambda x: x.has_biased_experts, lambda x: (x.num_moe_experts,)),
    "mlp.experts.experts.linear_fc1.weight": _when(
        lambda x: x.has_experts,
        lambda x: (x.num_moe_experts, 2 * x.moe_ffn_hidden_size, x.hidden_size),
    ),
    "mlp.experts.experts.linear_fc1.bias": _when(
        lambda x: x.has_biased_experts,
        lambda x: (x.num_moe_experts, 2 * x.moe_ffn_hidden_size),
    ),
    "mlp.experts.experts.linear_fc2.weight": _when(
        lambda x: x.has_experts,
        lambda x: (x.num_moe_experts, x.hidden_size, x.moe_ffn_hidden_size),
    ),
    "mlp.experts.experts.linear_fc2.bias": _when(
        lambda x: x.has_biased_experts, lambda x: (x.num_moe_experts, x.hidden_size)
    ),
    "mlp.experts.experts.linear_fc1.weight.{expert}": _when(
        lambda x: x.has_experts, lambda x: (2 * x.moe_ffn_hidden_size, x.hidden_size)
    ),
    "mlp.experts.experts.linear_fc2.weight.{expert}": _when(
        lambda x: x.has_experts, lambda x: (x.hidden_size, x.moe_ffn_hidden_size)
    ),
    "mlp.shared_experts.linear_fc1.weight": _when(
        lambda x: x.has_experts and x.moe_shared_expert_intermediate_size,
        lambda x: (2 * x.moe_shared_expert_intermediate_size, x.hidden_size),
    ),
    "mlp.shared_experts.linear_fc2.weight": _when(
        lambda x: x.has_experts and x.moe_shared_expert_intermediate_size,
        lambda x: (x.hidden_size, x.moe_shared_expert_intermediate_size),
    ),
}


class _Whole:
    """A tensor without numbers, as far as the splits of the families that ship ask for one."""

    def __init__(self, shape: Shape = ()) -> None:
        self.shape = shape

    def chunk(self, count: int, dim: int = 0) -> list["_Whole"]:
        sizes = [size // count if axis == dim else size for axis, size in enumerate(self.shape)]
        return [_Whole(tuple(sizes))] * count

    def split_with_sizes(self, sizes: list[int], dim: int) -> list["_Whole"]:
        return [_Whole() for _ in sizes]

    def view(self, *_: int) -> "_Whole":
        return self

    def transpose(self, *_: int) -> "_Whole":
        return self

    def permute(self, *_: int) -> "_Whole":
        return self


def is_complete(family: Family) -> bool:
    """Whether the shapes of all tensors of a family are known here."""
    return all(map(_is_known, family.parts))


def shapes_of(model: Model) -> Shapes:
    """The Hugging Face tensors of `model` with their shapes."""
    found: Shapes = {}
    for part, numbers, whole in _parts(model):
        pieces = part.split(cast("Tensor", _Whole(whole)), model.architecture)
        here: Shapes = {}
        for name, piece in zip(part.hf, pieces, strict=True):
            here[name] = piece.behind(here.get(name))
        found |= {name.format(**numbers): shape for name, shape in here.items()}
    return found


def wholes_of(model: Model) -> Shapes:
    """The tensors of `model` with their shapes, by megatron-core's names, each layer and each
    expert by itself."""
    return {part.key.format(**numbers): whole for part, numbers, whole in _parts(model)}


def parameters_of(model: Model) -> Shapes:
    """The parameters of `model` with their shapes, by the names that flags go by (`freezing`)."""
    found: Shapes = {}
    for key, shape in wholes_of(model).items():
        if _OF_ALL_EXPERTS.search(key):
            found |= {name_of(f"{key}.{expert}"): shape[1:] for expert in range(shape[0])}
        elif not key.endswith(_BUFFERS):
            found[name_of(key)] = shape
    return found


def _parts(model: Model) -> Iterator[tuple[Part, dict[str, int], Shape]]:
    """Each tensor of megatron-core's: what it is made of, its numbers, its shape."""
    architecture = model.architecture
    layers = [_Layer(architecture, index) for index in range(architecture.num_layers)]
    for part in filter(_is_known, model.family.parts):
        if found := _OF_MTP.fullmatch(part.key):
            yield from _of_mtp(part, found[1], architecture)
            continue
        if "{layer}" not in part.key:
            if (shape := _outside(part.key, architecture)) is not None:
                yield part, {}, shape
            continue
        rule = _RULES[part.key.removeprefix(_LAYER)]
        for index, layer in enumerate(layers):
            yield from _in_layer(part, {"layer": index}, rule(layer), layer)


def _in_layer(
    part: Part, numbers: dict[str, int], shape: Shape | None, layer: _Layer
) -> Iterator[tuple[Part, dict[str, int], Shape]]:
    if shape is None:
        return
    if "{expert}" not in part.key:
        yield part, numbers, shape
        return
    for expert in range(layer.num_moe_experts):
        yield part, {**numbers, "expert": expert}, shape


def _of_mtp(
    part: Part, key: str, architecture: Architecture
) -> Iterator[tuple[Part, dict[str, int], Shape]]:
    """Of a layer of multi-token prediction, whose own layer is like the decoder's last."""
    layer = _Layer(architecture, architecture.num_layers - 1)
    hidden = architecture.hidden_size
    own: dict[str, Shape] = {"eh_proj.weight": (hidden, 2 * hidden)}
    own |= {f"{name}.weight": (hidden,) for name in ("enorm", "hnorm", "final_layernorm")}
    rule = _RULES.get(key.removeprefix("transformer_layer."))
    yield from _in_layer(part, {}, rule(layer) if rule else own[key], layer)


def _is_known(part: Part) -> bool:
    has_rule = part.key.removeprefix(_LAYER) in _RULES if "{layer}" in part.key else True
    return has_rule and part.split.__module__.startswith("agentrl.models.")


def _outside(key: str, architecture: Architecture) -> Shape | None:
    """Of the tensors that belong to no layer."""
    table = (architecture.vocab_size, architecture.hidden_size)
    return {
        "embedding.word_embeddings.weight": table,
        "decoder.final_layernorm.weight": (architecture.hidden_size,),
        "output_layer.weight": None if architecture.tied_embeddings else table,
    }.get(key)
