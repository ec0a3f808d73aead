"""The arguments that Megatron builds a model from, as a checkpoint in its format holds them.

Megatron's own names and values, all of them plain: it reads them with --use-checkpoint-args, and
slime's converter to Hugging Face's form asks them for the numbers of layers and experts. A layout
is not among them, for any layout reads a checkpoint of ours; nor is an optimizer or the state of
generators that Megatron could go on with.
"""

from typing import Any

from agentrl.config.megatron import MegatronSettings
from agentrl.models.architecture import Architecture
from agentrl.models.rope import LinearRope, YarnRope, written_yarn

__all__ = ["written_arguments"]

#: The opposite of an argument that Megatron keeps under another name.
_NEGATED = "disable_bias_linear"
_ALWAYS = {
    "normalization": "RMSNorm",
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "no_save_optim": True,
    "no_save_rng": True,
}


def written_arguments(architecture: Architecture) -> dict[str, Any]:
    """Those of a model, by Megatron's names."""
    flags = architecture.flags()
    names = [name for name in MegatronSettings.__struct_fields__ if name in flags]
    told = {name: getattr(architecture, name, flags[name]) for name in names} | {
        "add_bias_linear": architecture.add_bias_linear,
        "group_query_attention": architecture.num_query_groups < architecture.num_attention_heads,
        "quick_geglu": architecture.activation == "quick_gelu",
        "moe_layer_freq": getattr(architecture, "moe_layer_freq", None),
        "rope_type": getattr(architecture, "rope_type", None),
        **_positions(architecture),
        **_ALWAYS,
    }
    return {n: value for n, value in told.items() if value is not None and n != _NEGATED}


def _positions(architecture: Architecture) -> dict[str, Any]:
    rope = architecture.rope
    if isinstance(rope, YarnRope) and not architecture.flags()["multi_latent_attention"]:
        return {"position_embedding_type": "yarn", **written_yarn(rope)}
    if isinstance(rope, LinearRope) and rope.factor != 1:
        return {
            "position_embedding_type": "rope",
            "rotary_seq_len_interpolation_factor": rope.factor,
        }
    return {"position_embedding_type": "rope"}
