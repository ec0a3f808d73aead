"""Gated delta nets in most layers of a decoder, gated attention in the others: what Qwen3-Next and
Qwen3.5 share (https://arxiv.org/abs/2412.06464), and their tensors.

Norms multiply by 1 + weight, but for the one inside a delta net. Refused, by name: what SGLang or
the learner would compute otherwise, and a config.json that leaves out what SGLang takes from
nowhere else, such as the one that transformers writes.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from agentrl.config.megatron import MegatronSettings
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.experts import Experts
from agentrl.models.family import TensorPiece, halves, in_layer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ATTENTION_FUSED",
    "DELTA_NET",
    "DELTA_NET_TINY",
    "DeltaNetDecoder",
    "DeltaNetExperts",
    "DeltaNetSizes",
    "gated",
    "in_six",
    "in_two",
    "is_predictor",
    "read_delta_net",
    "read_delta_net_experts",
]


class DeltaNetSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a delta net, under the names of config.json. The heads of values are shared out
    evenly over those of keys, of which each has a query. Every `full_attention_interval`-th layer
    has attention in its place."""

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    full_attention_interval: int

    def has_attention(self, index: int) -> bool:
        """Whether layer `index`, counted from 0, attends."""
        return (index + 1) % self.full_attention_interval == 0

    @property
    def values_of_a_key(self) -> int:
        """Value heads that share one key head."""
        return self.linear_num_value_heads // self.linear_num_key_heads

    @property
    def convolved(self) -> list[int]:
        """Channels of one key head that are convolved: its query, its key, its values."""
        values = self.values_of_a_key * self.linear_value_head_dim
        return [self.linear_key_head_dim, self.linear_key_head_dim, values]

    @property
    def projected(self) -> list[int]:
        """Channels that the input projection gives for one key head: those that are convolved, and
        for each of its values a gate, a rate of writing (beta) and a rate of forgetting (alpha)."""
        return [*self.convolved, self.convolved[-1], *[self.values_of_a_key] * 2]


class DeltaNetDecoder(Architecture, frozen=True, kw_only=True):
    """A dense decoder, of which most layers have a delta net."""

    layer: ClassVar[str] = "delta_net"

    delta_net: DeltaNetSizes

    def refusals(self, settings: MegatronSettings) -> Iterator[str]:
        """As without delta nets; and each rank that shares a sequence has whole key heads."""
        yield from super().refusals(settings)
        yield from _about_layout(self.name, self.delta_net, settings)


class DeltaNetExperts(Experts, frozen=True, kw_only=True):
    """A decoder with experts, of which most layers have a delta net."""

    layer: ClassVar[str] = "delta_net"

    delta_net: DeltaNetSizes

    def refusals(self, settings: MegatronSettings) -> Iterator[str]:
        """As without delta nets; and each rank that shares a sequence has whole key heads."""
        yield from super().refusals(settings)
        yield from _about_layout(self.name, self.delta_net, settings)


def _about_layout(name: str, sizes: DeltaNetSizes, settings: MegatronSettings) -> Iterator[str]:
    by = f"--tensor-model-parallel-size {settings.tensor_model_parallel_size}"
    if settings.context_parallel_size > 1:
        by += f" x --context-parallel-size {settings.context_parallel_size}"
    ranks = settings.tensor_model_parallel_size * settings.context_parallel_size
    if sizes.linear_num_key_heads % ranks:
        yield (
            f"{sizes.linear_num_key_heads} key heads of a delta net cannot be divided by {by} "
            f"({name}): each of these ranks computes whole heads; lower one of the sizes"
        )


def gated(decoder: Architecture) -> dict[str, Any]:
    """The fields of `decoder` with gates on its attention and norms that multiply by 1 + weight."""
    more = {"attention_output_gate": True, "layernorm_zero_centered_gamma": True}
    return msgspec.structs.asdict(decoder) | more


def read_delta_net(
    config: dict[str, Any], engine_needs: tuple[str, ...] = ("full_attention_interval",)
) -> DeltaNetSizes:
    """The sizes in a config.json. `engine_needs`: keys that SGLang takes from nowhere else. Raises
    ConfigError."""
    for name in engine_needs:
        if name not in config:
            raise ConfigError(
                f"{name} is missing; it is needed even beside layer_types and "
                "rope_parameters: SGLang looks for it alone; add it to the file"
            )
    nested = config.get("rope_parameters") or {}
    for name, usual in (("rope_theta", None), ("partial_rotary_factor", 0.25)):
        theirs = config.get(name, usual)
        if theirs is not None and theirs != (ours := nested.get(name, theirs)):
            raise ConfigError(
                f"{name} {theirs} beside {ours} in rope_parameters is not supported: SGLang would "
                "take the first"
            )
    if gate := {config.get("output_gate_type")} - {None, "silu", "swish"}:
        raise ConfigError(f"output_gate_type {gate} is not supported, only silu")
    sizes = DeltaNetSizes(**{name: config[name] for name in DeltaNetSizes.__struct_fields__})
    if sizes.linear_num_value_heads % sizes.linear_num_key_heads:
        raise ConfigError(
            f"linear_num_value_heads {sizes.linear_num_value_heads} is not supported, only a "
            f"multiple of linear_num_key_heads {sizes.linear_num_key_heads}"
        )
    kinds = ("linear_attention", "full_attention")
    regular = [kinds[sizes.has_attention(i)] for i in range(config["num_hidden_layers"])]
    if (config.get("layer_types") or regular) != regular:
        raise ConfigError(
            f"layer_types {config['layer_types']} is not supported, only full_attention in every "
            f"layer whose number full_attention_interval {sizes.full_attention_interval} divides"
        )
    return sizes


def read_delta_net_experts(
    config: dict[str, Any], decoder: Architecture, sizes: DeltaNetSizes
) -> DeltaNetExperts:
    """The architecture of one with experts in all layers. Raises ConfigError."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"mlp_only_layers {config.get('mlp_only_layers')} with decoder_sparse_step "
            f"{config.get('decoder_sparse_step', 1)} is not supported, only experts in all layers"
        )
    return DeltaNetExperts(
        **gated(decoder),
        delta_net=sizes,
        num_moe_experts=config["num_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_layer_freq=[1] * decoder.num_layers,
        moe_router_pre_softmax=not config.get("norm_topk_prob", True),
        moe_shared_expert_intermediate_size=config["shared_expert_intermediate_size"],
        moe_shared_expert_gate=True,
    )


def _by_key_heads(whole: "Tensor", sizes: DeltaNetSizes, rows: list[int]) -> list[TensorPiece]:
    """Parts of a tensor that has `rows` of each kind for every key head."""
    heads, rest = sizes.linear_num_key_heads, tuple(whole.shape[1:])
    views = whole.view(heads, -1, *rest).split_with_sizes(rows, 1)
    return [TensorPiece(view, (heads * n, *rest)) for view, n in zip(views, rows, strict=True)]


def _convolved(whole: "Tensor", architecture: Any) -> list[TensorPiece]:
    """Of all queries, of all keys, of all values."""
    return _by_key_heads(whole, architecture.delta_net, architecture.delta_net.convolved)


def in_two(whole: "Tensor", architecture: Any) -> list[TensorPiece]:
    """What is convolved and the gate, together for each key head; and the two rates."""
    *wide, beta, alpha = architecture.delta_net.projected
    return _by_key_heads(whole, architecture.delta_net, [sum(wide), beta + alpha])


def in_six(whole: "Tensor", architecture: Any) -> list[TensorPiece]:
    """Queries, keys and values of all heads; their gates; and each of the rates."""
    return _by_key_heads(whole, architecture.delta_net, architecture.delta_net.projected)


def _gated_qkv(whole: "Tensor", architecture: Architecture) -> list[TensorPiece]:
    """Queries with their gates, keys and values. megatron-core has for each key-value head all its
    queries and then all their gates; on disk each head's gate follows its query."""
    groups, width = architecture.num_query_groups, architecture.kv_channels
    heads, rest = architecture.num_attention_heads, tuple(whole.shape[1:])
    each = heads // groups
    queries, key, value = whole.view(groups, -1, *rest).split_with_sizes(
        [2 * each * width, width, width], 1
    )
    queries = queries.view(groups, 2, each, width, *rest).transpose(1, 2)
    return [
        TensorPiece(queries, (2 * heads * width, *rest)),
        TensorPiece(key, (groups * width, *rest)),
        TensorPiece(value, (groups * width, *rest)),
    ]


def is_predictor(name: str, _: Architecture) -> bool:
    """Tensors of multi-token prediction, which stand beside the decoder."""
    return name.startswith("mtp.")


#: Tensors of layers with delta nets, and of those with gated attention. The input projection, which
#: checkpoints have in different parts, is the family's.
DELTA_NET = (
    in_layer(
        "self_attention.linear_qkv.weight",
        *(f"self_attn.{name}_proj.weight" for name in "qkv"),
        split=_gated_qkv,
    ),
    in_layer("self_attention.in_proj.layer_norm_weight", "input_layernorm.weight"),
    in_layer("self_attention.conv1d.weight", *["linear_attn.conv1d.weight"] * 3, split=_convolved),
    in_layer("self_attention.dt_bias", "linear_attn.dt_bias"),
    in_layer("self_attention.A_log", "linear_attn.A_log"),
    in_layer("self_attention.out_norm.weight", "linear_attn.norm.weight"),
    in_layer("self_attention.out_proj.weight", "linear_attn.out_proj.weight"),
    in_layer("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
    in_layer(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_expert.gate_proj.weight",
        "mlp.shared_expert.up_proj.weight",
        split=halves,
    ),
    in_layer("mlp.shared_experts.linear_fc2.weight", "mlp.shared_expert.down_proj.weight"),
)

#: SGLang has the parts of gated attention in the layer itself.
ATTENTION_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    **{name: (f"self_attn.{name}",) for name in ("o_proj", "q_norm", "k_norm")},
}

#: What a small config.json has of delta nets.
DELTA_NET_TINY: Mapping[str, Any] = {
    # With larger weights sums in another order are further off than the bounds of tests.
    "initializer_range": 0.03,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
