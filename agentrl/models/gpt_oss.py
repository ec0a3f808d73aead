"""gpt-oss: attention with a sink in every head and a window in every second layer, biases
everywhere, and experts with a clamped activation, whose weights are one tensor for each layer.

Refused, by their keys: an activation with other constants than megatron-core has, and layers that
are neither of the two kinds. The published weights of the experts are in MXFP4, which engines
serve; a learner takes its own from a folder in bfloat16 or float32.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec.structs import asdict

from agentrl.config.megatron import MegatronSettings
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.experts import Experts
from agentrl.models.family import Family, Part, TensorPiece, in_layer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILY"]

_WINDOW, _FULL = "sliding_attention", "full_attention"
#: What megatron-core's quick GELU multiplies the argument of its sigmoid by.
_ALPHA = 1.702
#: How its positions are scaled where a config.json does not say.
_USUAL_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}


def _interleaved(whole: "Tensor", _: Architecture) -> list[TensorPiece]:
    """Rows of gate and up projection take turns on disk; here each expert has all of the gate
    first. A weight [experts, rows, columns] is transposed as well."""
    experts, rows, *columns = whole.shape
    shape = (experts, *columns, rows)
    pairs = whole.view(experts, 2, rows // 2, *columns)
    pairs = pairs.permute(0, 3, 2, 1) if columns else pairs.permute(0, 2, 1)
    return [TensorPiece(pairs, shape)]


def _transposed(whole: "Tensor", _: Architecture) -> list[TensorPiece]:
    """The weights of all experts [experts, rows, columns], with rows and columns exchanged."""
    experts, rows, columns = whole.shape
    return [TensorPiece(whole.permute(0, 2, 1), (experts, columns, rows))]


_ALL = "mlp.experts.experts."
_OWN = (
    in_layer("self_attention.core_attention.softmax_offset", "self_attn.sinks"),
    in_layer("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
    in_layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    in_layer("mlp.router.weight", "mlp.router.weight"),
    in_layer("mlp.router.bias", "mlp.router.bias"),
    in_layer(f"{_ALL}linear_fc1.weight", "mlp.experts.gate_up_proj", split=_interleaved),
    in_layer(f"{_ALL}linear_fc1.bias", "mlp.experts.gate_up_proj_bias", split=_interleaved),
    in_layer(f"{_ALL}linear_fc2.weight", "mlp.experts.down_proj", split=_transposed),
    in_layer(f"{_ALL}linear_fc2.bias", "mlp.experts.down_proj_bias"),
)


def _parts() -> tuple[Part, ...]:
    """The decoder's, with these in the place of an MLP."""
    kept = [part for part in PARTS if ".mlp." not in part.key]
    return (*kept[:-2], *_OWN, *kept[-2:])


class _GptOss(Experts, frozen=True, kw_only=True):
    """`window_attn_skip_freq`: for each layer, whether it sees through the window."""

    layer: ClassVar[str] = "sinks"
    activation: ClassVar[Literal["silu", "quick_gelu"]] = "quick_gelu"

    add_bias_linear: bool = True
    softmax_type: Literal["learnable"] = "learnable"
    glu_linear_offset: float = 1.0
    activation_func_clamp_value: float
    window_attn_skip_freq: list[int]

    def refusals(self, settings: MegatronSettings) -> Iterator[str]:
        """As for other experts; these have biases, so that each is whole."""
        yield from super().refusals(settings)
        if (cut := settings.ranks_of_an_expert) > 1:
            tensor = settings.tensor_model_parallel_size
            yield (
                f"the experts of a {self.name} have biases, so megatron-core keeps each of them on "
                f"one rank, and --tensor-model-parallel-size {tensor} would cut them over {cut}; "
                "give --expert-model-parallel-size above 1 and --expert-tensor-parallel-size 1"
            )


def _read(config: dict[str, Any]) -> Architecture:
    for key in ("swiglu_alpha", "hidden_act_alpha"):
        if config.get(key, _ALPHA) != _ALPHA:
            raise ConfigError(f"{key} {config[key]} is not supported, only {_ALPHA}")
    if not config.get("attention_bias", True):
        raise ConfigError("attention_bias False is not supported, only True")
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = config | {"rope_scaling": _USUAL_ROPE}
    decoder = read_decoder(config | {"attention_bias": False}, add_qkv_bias=True)
    window = config["sliding_window"]
    if not window:
        raise ConfigError(f"sliding_window {window} is not supported: engines need a number")
    kinds = config.get("layer_types") or [
        _FULL if layer % 2 else _WINDOW for layer in range(decoder.num_layers)
    ]
    if len(kinds) != decoder.num_layers or {*kinds} - {_WINDOW, _FULL}:
        raise ConfigError(
            f"layer_types {kinds} is not supported, only {_WINDOW} or {_FULL} for each of "
            f"{decoder.num_layers} layers"
        )
    return _GptOss(
        **asdict(decoder) | {"add_bias_linear": True, "window_size": (window - 1, 0)},
        num_moe_experts=config["num_local_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["intermediate_size"],
        moe_layer_freq=[1] * decoder.num_layers,
        activation_func_clamp_value=float(config["swiglu_limit"]),
        window_attn_skip_freq=[int(kind == _WINDOW) for kind in kinds],
    )


FAMILY = Family(
    name="gpt-oss",
    architectures=("GptOssForCausalLM",),
    read=_read,
    parts=_parts(),
    defaults={"num_key_value_heads": 8, "head_dim": 64, "rope_theta": 150_000.0},
    tiny={
        **tiny("GptOssForCausalLM", "gpt_oss"),
        "attention_bias": True,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": [_WINDOW, _FULL],
        "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        "pad_token_id": None,
    },
    engine_fused={"qkv_proj": FUSED["qkv_proj"]},
    engine_class="sglang.srt.models.gpt_oss:GptOssForCausalLM",
    engine_window=True,
    chat_formats=("harmony",),
    # It has experts transposed there, and sinks in another type.
    engine_digests=False,
)
