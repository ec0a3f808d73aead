"""The sizes and switches of a decoder, under megatron-core's names."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from agentrl.config.megatron import LATENT_FLAGS, MegatronSettings, flag
from agentrl.config.stages import layers_of_stages
from agentrl.errors import ConfigError
from agentrl.models.rope import LinearRope, Llama3Rope, Rope, written_otherwise

__all__ = ["Architecture"]

_OF_EXPERTS = (
    "num_experts",
    "moe_layer_freq",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "moe_router_topk",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_enable_expert_bias",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_topk_scaling_factor",
)

#: Arguments of Megatron's that are no field, and of which another value is another model.
_SWITCHES = (
    "untie_embeddings_and_output_weights",
    "multi_latent_attention",
    "apply_layernorm_1p",
    "swiglu",
)

#: Numbers that change nothing, which Megatron has as None too.
_NEUTRAL = {
    "moe_router_num_groups": 1,
    "moe_router_group_topk": 1,
    "moe_router_topk_scaling_factor": 1.0,
}

#: How positions may be rotary in Megatron: of text alone the three are one, but for YaRN.
_ROTARY = ("rope", "yarn", "mrope")

#: Fields in which two models may differ that have the same weights.
_BESIDE = ("max_position_embeddings", "num_nextn_predict_layers", "mtp_num_layers")


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder with RMSNorm, rotary positions, grouped queries and a gated SiLU MLP. `name`
    is its Hugging Face architecture. A family may derive from it: a further field goes to the field
    of that name of megatron-core's `config_class`, `layer` names the module of
    `agentrl.learner.megatron.layers` that says what a layer is made of, and `activation` what the
    gate of an MLP goes through.

    `num_nextn_predict_layers`: layers of multi-token prediction that its checkpoint has; None: its
    config.json does not say. `mtp_num_layers`: those that are built and trained (`mtp.with_mtp`).
    """

    layer: ClassVar[str] = "decoder"
    activation: ClassVar[Literal["silu", "quick_gelu"]] = "silu"
    config_class: ClassVar[str] = "TransformerConfig"

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    qk_layernorm: bool
    add_qkv_bias: bool
    tied_embeddings: bool
    add_bias_linear: bool = False
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    post_self_attn_layernorm: bool = False
    post_mlp_layernorm: bool = False
    attention_output_gate: bool = False
    layernorm_zero_centered_gamma: bool = False
    rope: Rope = LinearRope()
    window_size: tuple[int, int] | None = None
    num_nextn_predict_layers: int | None = None
    mtp_num_layers: int | None = None

    def flags(self) -> dict[str, Any]:
        """What Megatron's architecture flags must say, by name; None: a model without the thing."""
        absent = dict.fromkeys((*_OF_EXPERTS, *LATENT_FLAGS))
        told = (
            absent
            | msgspec.structs.asdict(self)
            | {
                "untie_embeddings_and_output_weights": not self.tied_embeddings,
                "use_rope_scaling": isinstance(self.rope, Llama3Rope),
                "rope_scaling_factor": self.rope.factor,
                "rotary_scaling_factor": self.rope.factor,
                "multi_latent_attention": False,
                "disable_bias_linear": not self.add_bias_linear,
                "swiglu": self.activation == "silu",
                "apply_layernorm_1p": self.layernorm_zero_centered_gamma,
                "use_gated_attention": self.attention_output_gate,
                "mtp_num_layers": self.num_nextn_predict_layers,
            }
        )
        if self.num_nextn_predict_layers is None:
            del told["mtp_num_layers"]  # of these the file may say nothing and the checkpoint have
        return told

    def has_experts(self, index: int) -> bool:
        """Whether layer `index`, counted from 0, has experts in the place of the MLP."""
        return False

    def check(self, settings: MegatronSettings) -> None:
        """Raise ConfigError for all that `refusals` names."""
        lines: list[str] = []
        try:
            lines.extend(self.refusals(settings))
        except ConfigError as error:  # a setting that cannot be read at all
            lines.append(str(error))
        if lines:
            raise ConfigError("\n".join(lines))

    def refusals(self, settings: MegatronSettings) -> Iterator[str]:
        """A line for each architecture flag that contradicts the checkpoint, and for each layout
        that cannot divide the model, with both numbers. A family may add its own."""
        told = self.flags()
        for name in settings.__struct_fields__:
            given = getattr(settings, name)
            if given is not None and name in told and given != told[name]:
                says = "nothing of it" if told[name] is None else told[name]
                yield (
                    f"{flag(name)} is {given} but the checkpoint's config.json says {says} "
                    f"({self.name}); leave the flag out or use another checkpoint"
                )
        if not any(map(self.has_experts, range(self.num_layers))):
            yield from self._about_experts(settings)
        yield from self._about_recomputed(settings)
        for what, number, by in (
            ("attention heads", self.num_attention_heads, "tensor_model_parallel_size"),
            ("key-value heads", self.num_query_groups, "tensor_model_parallel_size"),
            ("MLP columns", self.ffn_hidden_size, "tensor_model_parallel_size"),
        ):
            if number % (size := getattr(settings, by)):
                yield f"{number} {what} cannot be divided by {flag(by)} {size} ({self.name})"
        try:
            layers_of_stages(self.num_layers, settings)
        except ConfigError as error:
            yield str(error)
        if self.mtp_num_layers and settings.pipeline_model_parallel_layout is not None:
            yield (
                f"--pipeline-model-parallel-layout {settings.pipeline_model_parallel_layout} with "
                "--enable-mtp-training is not supported: layers of multi-token prediction are on "
                "the last stage here; share layers out by the other flags of the pipeline"
            )
        ranks, padded = settings.tensor_model_parallel_size, self.padded_vocab_size(settings)
        if padded - padded // ranks >= self.vocab_size:
            yield (
                f"{self.vocab_size} vocabulary entries, padded to {padded}, leave the last of "
                f"{ranks} tensor ranks without any; lower {flag('make_vocab_size_divisible_by')} "
                f"{settings.make_vocab_size_divisible_by} ({self.name})"
            )

    def padded_vocab_size(self, settings: MegatronSettings) -> int:
        """Rows of the embedding: equal shares for all tensor ranks, each a multiple of
        --make-vocab-size-divisible-by."""
        unit = settings.make_vocab_size_divisible_by * settings.tensor_model_parallel_size
        return -(-self.vocab_size // unit) * unit

    def _about_experts(self, settings: MegatronSettings) -> Iterator[str]:
        for name, without in (
            ("expert_model_parallel_size", 1),
            ("moe_aux_loss_coeff", 0.0),
            ("moe_router_bias_update_rate", None),
            ("moe_enable_routing_replay", False),
        ):
            if (given := getattr(settings, name)) not in (without, 0):
                size = "" if given is True else f" {given:g}"
                yield f"a {self.name} has no experts, which {flag(name)}{size} is for"

    def _about_recomputed(self, settings: MegatronSettings) -> Iterator[str]:
        """The --recompute-modules of which the model has none."""
        told = self.flags()
        layers = {self.has_experts(index) for index in range(self.num_layers)}
        here = {
            "mlp": False in layers,
            "moe": True in layers,
            "shared_experts": bool(told["moe_shared_expert_intermediate_size"]),
            "mla_up_proj": told["multi_latent_attention"],
        }
        for module in settings.recompute_modules or ():
            if not here.get(module, True):
                yield (
                    f"--recompute-modules {module}: a {self.name} of these layers has none; "
                    "leave it out"
                )

    def written_otherwise(self, arguments: Mapping[str, Any]) -> list[str]:
        """Where the `arguments` of the run that wrote a checkpoint, as far as they are known, are
        of another model, with both values of each. The vocabulary may be padded, how long a
        sequence may be is no matter of weights, and Megatron reads nothing that `flags` leaves
        out. What is None has no effect, as has the neutral number of its kind."""
        read = self.flags()
        told = {name: value for name, value in msgspec.structs.asdict(self).items() if name in read}
        told |= {name: read[name] for name in _SWITCHES}
        told |= {
            "quick_geglu": self.activation == "quick_gelu",
            "squared_relu": False,
            "normalization": "RMSNorm",
        }
        if arguments.get("position_embedding_type", "rope") not in _ROTARY:
            told["position_embedding_type"] = "rope"
        for name in ("vocab_size", "name", "moe_layer_freq", *_BESIDE):
            told.pop(name, None)
        if not arguments.get("group_query_attention", True):
            told.pop("num_query_groups", None)  # Megatron leaves its default there
        fields = [
            f"{name} {theirs} instead of {_effective(name, told[name]) or told[name]}"
            for name, theirs in arguments.items()
            if name in told and _effective(name, theirs) != _effective(name, told[name])
        ]
        is_latent = read["multi_latent_attention"]  # whose scaling is among the fields
        return fields if is_latent else [*fields, *written_otherwise(self.rope, arguments)]

    def differences(self, other: "Architecture") -> list[str]:
        """Fields in which weights of `other` are of another model, with both values. How long a
        sequence may be is no such field; layers of multi-token prediction are compared by their
        tensors."""
        return [
            f"{name} {theirs} instead of {ours}"
            for name, ours in msgspec.structs.asdict(self).items()
            if name not in _BESIDE and ours != (theirs := getattr(other, name, None))
        ]


def _effective(name: str, value: Any) -> Any:
    """What a value of an argument of Megatron's stands for."""
    return value or _NEUTRAL.get(name)
