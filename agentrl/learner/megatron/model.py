"""Builds this rank's share of the model: megatron-core's GPTModel with packed attention, one for
each of its stages of the pipeline.

Parameters are left uninitialized; `Weights.load` fills every one of them. What a layer is made of
says the module of `layers` that the architecture names.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.activations import quick_gelu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.utils import is_vp_first_stage, is_vp_last_stage
from megatron.core.transformer import transformer_config as configs
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from msgspec.structs import asdict
from torch.nn.functional import silu

from agentrl.config.megatron import MegatronSettings
from agentrl.config.stages import stages_of_a_rank
from agentrl.learner.megatron.exact_layers import make_exact
from agentrl.learner.megatron.gpu_kernels import can_compile
from agentrl.learner.megatron.head import put_head
from agentrl.learner.megatron.mtp import PredictingModel, mtp_block
from agentrl.learner.megatron.norms import RMSNorm
from agentrl.learner.megatron.padding import leave_padding_out
from agentrl.learner.megatron.rotary import scale_magnitude, set_frequencies
from agentrl.learner.megatron.value_head import put_value_head
from agentrl.models.architecture import Architecture
from agentrl.models.written import written_arguments

__all__ = ["Stages", "build_model", "parameter_dtype", "transformer_config"]

#: What the gate of an MLP goes through, by the name that an architecture has for it.
_ACTIVATIONS = {"silu": silu, "quick_gelu": quick_gelu}


def parameter_dtype(settings: MegatronSettings) -> torch.dtype:
    """Type of the trained weights; with bf16 the optimizer keeps float32 main weights beside."""
    return torch.bfloat16 if settings.bf16 else torch.float32


def transformer_config(architecture: Architecture, settings: MegatronSettings) -> Any:
    """megatron-core's configuration, of the class that `architecture` names and with every field of
    it that it has.
    `calculate_per_token_loss` makes its gradients plain sums over ranks and micro-batches: the loss
    brings its own denominator."""
    dtype = parameter_dtype(settings)
    kind = getattr(configs, architecture.config_class)
    names = {field.name for field in fields(kind)}
    config = kind(
        **{name: value for name, value in asdict(architecture).items() if name in names},
        **_parallelism(settings),
        **_pipeline(settings, stages_of_a_rank(architecture.num_layers, settings)),
        **_recompute(settings),
        **_experts(settings),
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=_ACTIVATIONS[architecture.activation],
        hidden_dropout=settings.hidden_dropout,
        attention_dropout=settings.attention_dropout,
        attention_softmax_in_fp32=settings.attention_softmax_in_fp32,
        deterministic_mode=settings.deterministic_mode,
        bf16=settings.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        calculate_per_token_loss=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_activation_fusion=architecture.activation == "silu" and can_compile(),
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=torch.cuda.is_available(),
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    if isinstance(config.moe_layer_freq, list) and all(config.moe_layer_freq):
        # With a list megatron-core cannot name the tensors of all layers as one.
        config.moe_layer_freq = 1
    # Set here, because megatron-core refuses it beside `allgather`, whose tokens it would not pad.
    config.variable_seq_lengths = True
    config.padded_vocab_size = architecture.padded_vocab_size(settings)
    scale_magnitude(config, architecture.rope)
    return config


def _parallelism(settings: MegatronSettings) -> dict[str, Any]:
    """How ranks share tensors, sequences and experts."""
    return {
        "tensor_model_parallel_size": settings.tensor_model_parallel_size,
        "context_parallel_size": settings.context_parallel_size,
        "expert_model_parallel_size": settings.expert_model_parallel_size,
        "expert_tensor_parallel_size": settings.ranks_of_an_expert,
        "sequence_parallel": settings.uses_sequence_parallel,
        "cp_comm_type": settings.cp_comm_type,
    }


def _pipeline(settings: MegatronSettings, interleaved: int) -> dict[str, Any]:
    """Where the pipeline is cut, and how its ranks, of `interleaved` stages each, exchange
    messages."""
    return {
        "pipeline_model_parallel_size": settings.pipeline_model_parallel_size,
        "num_layers_in_first_pipeline_stage": settings.decoder_first_pipeline_num_layers,
        "num_layers_in_last_pipeline_stage": settings.decoder_last_pipeline_num_layers,
        "account_for_embedding_in_pipeline_split": settings.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": settings.account_for_loss_in_pipeline_split,
        "pipeline_model_parallel_layout": settings.pipeline_model_parallel_layout,
        "virtual_pipeline_model_parallel_size": interleaved if interleaved > 1 else None,
        # Together, messages of both directions would be paired by their order alone: of two ranks,
        # which are each other's both neighbours, each would take the one for the other.
        "overlap_p2p_comm": interleaved > 1,
        "batch_p2p_comm": interleaved == 1,
        "batch_p2p_sync": torch.cuda.is_available(),
    }


def _recompute(settings: MegatronSettings) -> dict[str, Any]:
    """What the backward pass computes again."""
    return {
        "recompute_granularity": settings.recompute_granularity,
        "recompute_method": settings.recompute_method,
        "recompute_num_layers": settings.recompute_num_layers,
        "recompute_modules": settings.recompute_modules,
    }


def _experts(settings: MegatronSettings) -> dict[str, Any]:
    """How tokens come to their experts."""
    return {
        "moe_token_dispatcher_type": "allgather" if settings.gathers_tokens else "alltoall",
        "moe_router_load_balancing_type": settings.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": settings.moe_aux_loss_coeff,
        "moe_router_bias_update_rate": settings.bias_update_rate,
        "moe_router_dtype": settings.moe_router_dtype,
        "moe_enable_routing_replay": settings.moe_enable_routing_replay,
    }


class Stages(torch.nn.ModuleList):
    """A rank's stages of the pipeline, first to last. `vocab_size` counts no padding; `arguments`:
    what Megatron builds the model from, for its checkpoints."""

    def __init__(
        self, stages: Iterable[Any], vocab_size: int, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__(stages)
        self.vocab_size = vocab_size
        self.arguments = arguments

    def sharded_state_dict(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """What megatron-core says of each stage, by its number."""
        stages: Iterable[Any] = self
        return {
            str(number): stage.sharded_state_dict(metadata=metadata)
            for number, stage in enumerate(stages)
        }


def build_model(
    architecture: Architecture,
    config: Any,
    device: torch.device,
    *,
    is_critic: bool = False,
    is_exact: bool = False,
) -> Stages:
    """This rank's GPTModels on `device`, with parameters not yet set. A critic has, in place of the
    output weights, a head that gives values, at 0. `is_exact`: as under --true-on-policy-mode."""
    number = config.virtual_pipeline_model_parallel_size
    indices = [None] if number is None else range(number)
    stages = (_stage(architecture, config, index, is_critic) for index in indices)
    model = Stages(stages, architecture.vocab_size, written_arguments(architecture))
    if is_exact:
        make_exact(model, config)
    return model if device.type == "cpu" else model.to(device)


def _stage(architecture: Architecture, config: Any, index: int | None, is_critic: bool) -> Any:
    number = config.virtual_pipeline_model_parallel_size
    is_first = parallel_state.is_pipeline_first_stage() and is_vp_first_stage(index, number)
    is_last = parallel_state.is_pipeline_last_stage() and is_vp_last_stage(index, number)
    model = (PredictingModel if config.mtp_num_layers else GPTModel)(
        config,
        _block(architecture, config, index),
        vocab_size=config.padded_vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=is_first,
        post_process=is_last,
        parallel_output=True,
        share_embeddings_and_output_weights=architecture.tied_embeddings and not is_critic,
        position_embedding_type="rope",
        rotary_base=architecture.rotary_base,
        rotary_percent=architecture.rotary_percent,
        mtp_block_spec=_mtp(architecture, config) if is_last else None,
        vp_stage=index,
    )
    if is_critic:
        put_value_head(model, config)
    else:
        put_head(model)
    set_frequencies(model, architecture)
    leave_padding_out(model)
    return model


def _mtp(architecture: Architecture, config: Any) -> Any:
    """Of layers of multi-token prediction, each of which has one like the decoder's last."""
    if not config.mtp_num_layers:
        return None
    last = _kind_of(architecture).layer(architecture, config, architecture.num_layers - 1)
    return mtp_block(last, config.mtp_num_layers)


def _kind_of(architecture: Architecture) -> Any:
    """The module that says what a layer is made of."""
    return importlib.import_module(f"agentrl.learner.megatron.layers.{architecture.layer}")


def _block(architecture: Architecture, config: Any, stage: int | None) -> Any:
    # Spelled out because a bare layer spec would bring megatron-core's own final norm.
    kind = _kind_of(architecture)
    first = get_transformer_layer_offset(config, stage)
    here = range(first, first + get_num_layers_to_build(config, stage))
    layers = [kind.layer(architecture, config, index) for index in here]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)
