"""Mixtures of experts: what a decoder with experts has beyond a dense one, and its tensors.

Refused, by name: routers that megatron-core 0.16.1 would compute otherwise than the checkpoint
means.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentrl.config.megatron import MegatronSettings
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.family import Part, halves, in_layer

__all__ = ["EXPERTS", "EXPERTS_FUSED", "Experts", "read_sigmoid_router", "with_experts"]

_ONE = "mlp.experts.{expert}."
#: Tensors of the layers with experts. The norm before them is fused into no projection.
EXPERTS = (
    in_layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    in_layer("mlp.router.weight", "mlp.gate.weight"),
    in_layer("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
    in_layer(
        "mlp.experts.experts.linear_fc1.weight.{expert}",
        f"{_ONE}gate_proj.weight",
        f"{_ONE}up_proj.weight",
        split=halves,
    ),
    in_layer("mlp.experts.experts.linear_fc2.weight.{expert}", f"{_ONE}down_proj.weight"),
    in_layer(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.gate_proj.weight",
        "mlp.shared_experts.up_proj.weight",
        split=halves,
    ),
    in_layer("mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight"),
)

#: SGLang's parameters of all experts of a layer. They stand before those of the dense decoder,
#: whose names are parts of these.
EXPERTS_FUSED: Mapping[str, tuple[str, ...]] = {
    "experts.w13_weight": (
        "experts.{expert}.gate_proj.weight",
        "experts.{expert}.up_proj.weight",
    ),
    "experts.w2_weight": ("experts.{expert}.down_proj.weight",),
}


class Experts(Architecture, frozen=True, kw_only=True):
    """A decoder with experts in the layers where `moe_layer_freq`, one number for each layer, is 1.
    The names are those of megatron-core's TransformerConfig."""

    num_moe_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_layer_freq: list[int]
    moe_router_pre_softmax: bool = False
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_topk_scaling_factor: float | None = None
    moe_router_enable_expert_bias: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False

    def __post_init__(self) -> None:
        if self.moe_router_enable_expert_bias and self.moe_router_score_function != "sigmoid":
            raise ConfigError(
                f"a correction bias beside {self.moe_router_score_function} scores is not "
                "supported, only beside sigmoid ones"
            )
        if self.moe_router_score_function == "sigmoid" and self.moe_router_topk == 1:
            raise ConfigError(
                "1 expert for each token is not supported beside sigmoid scores: transformers and "
                "SGLang normalize its score to 1, megatron-core does not"
            )
        chosen = self.moe_router_group_topk
        if chosen is not None and self.moe_router_topk // chosen != 2:
            raise ConfigError(
                f"{self.moe_router_topk} experts of {chosen} groups for each token are not "
                "supported: a group is chosen by the scores of its two best experts, megatron-core "
                f"would take {self.moe_router_topk // chosen}"
            )

    def has_experts(self, index: int) -> bool:
        """See `Architecture.has_experts`."""
        return bool(self.moe_layer_freq[index])

    def flags(self) -> dict[str, Any]:
        """See `Architecture.flags`; a single group is no group, and sigmoid scores are taken one by
        one, before or after the choice."""
        told = super().flags() | {"num_experts": self.num_moe_experts}
        told["moe_router_num_groups"] = self.moe_router_num_groups or 1
        told["moe_router_group_topk"] = self.moe_router_group_topk or 1
        told["moe_router_topk_scaling_factor"] = self.moe_router_topk_scaling_factor or 1.0
        told.pop("moe_layer_freq")
        if self.moe_router_score_function == "sigmoid":
            told.pop("moe_router_pre_softmax")
        return told

    def refusals(self, settings: MegatronSettings) -> Iterator[str]:
        """As for a dense decoder; and ranks that share experts out must get whole ones."""
        yield from super().refusals(settings)
        rate = settings.moe_router_bias_update_rate or 0
        if rate > 0 and not self.moe_router_enable_expert_bias:
            yield (
                f"a {self.name} has no correction bias that --moe-router-bias-update-rate {rate:g} "
                "could move"
            )
        layers = settings.layers_with_experts(self.num_layers)
        if layers is not None and layers != self.moe_layer_freq:
            yield (
                f"--moe-layer-freq {settings.moe_layer_freq} is for {len(layers)} layers of which "
                f"{sum(layers)} have experts, the checkpoint's config.json says {self.num_layers} "
                f"and {sum(self.moe_layer_freq)} ({self.name}); leave the flag out"
            )
        for what, number, flag, size in (
            (
                "experts",
                self.num_moe_experts,
                "--expert-model-parallel-size",
                settings.expert_model_parallel_size,
            ),
            (
                "columns of an expert",
                self.moe_ffn_hidden_size,
                "--expert-tensor-parallel-size",
                settings.ranks_of_an_expert,
            ),
            (
                "columns of the shared expert",
                self.moe_shared_expert_intermediate_size or 0,
                "--tensor-model-parallel-size",
                settings.tensor_model_parallel_size,
            ),
        ):
            if number % size:
                yield (f"{number} {what} cannot be divided by {flag} {size} ({self.name})")
        tensor, cut = settings.tensor_model_parallel_size, settings.ranks_of_an_expert
        if tensor > 1 and not settings.sequence_parallel:
            yield (
                f"a {self.name} with --tensor-model-parallel-size {tensor} needs "
                "--sequence-parallel: megatron-core trains experts on tensor-parallel ranks only "
                "with it"
            )
        if settings.expert_model_parallel_size == 1 and cut != tensor:
            yield (
                f"--expert-tensor-parallel-size {cut} with --tensor-model-parallel-size {tensor} "
                "needs --expert-model-parallel-size above 1: without it megatron-core reduces the "
                "gradients of experts as all others; leave --expert-tensor-parallel-size out "
                f"({self.name})"
            )


def with_experts(dense: tuple[Part, ...]) -> tuple[Part, ...]:
    """The table of a decoder, of which some layers have experts."""
    last = max(index for index, part in enumerate(dense) if "{layer}" in part.key)
    return (*dense[: last + 1], *EXPERTS, *dense[last + 1 :])


def read_sigmoid_router(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Experts` where config.json has the keys of DeepSeek-V3, as those of GLM-4.5
    and Kimi K2 do: sigmoid scores, groups of experts, a correction bias, and dense layers first."""
    if not config.get("norm_topk_prob", True):
        raise ConfigError(
            "norm_topk_prob False is not supported beside sigmoid scores: megatron-core always "
            "normalizes them"
        )
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if config.get(key, only) != only:
            raise ConfigError(f"{key} {config[key]} is not supported, only {only}")
    groups = config.get("n_group") or 1
    width, layers = config["moe_intermediate_size"], config["num_hidden_layers"]
    dense = min(config.get("first_k_dense_replace", 0), layers)
    shared = (config.get("n_shared_experts") or 0) * width
    return {
        "num_moe_experts": config["n_routed_experts"],
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": width,
        "moe_layer_freq": [0] * dense + [1] * (layers - dense),
        "moe_router_score_function": "sigmoid",
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": config["topk_group"] if groups > 1 else None,
        "moe_router_topk_scaling_factor": config.get("routed_scaling_factor"),
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": shared or None,
    }
