"""Builds this rank's share of the model: megatron-core's GPTModel with packed attention.

Parameters are left uninitialised; `Weights.load` fills every one of them. The layer is
megatron-core's local one, so no Transformer Engine, Apex or flash-attn is needed.
"""

from dataclasses import fields
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from msgspec.structs import asdict
from torch.nn.functional import silu

from agentrl.config.megatron import MegatronSettings
from agentrl.learner.megatron.attention import PackedAttention
from agentrl.models.architecture import Architecture

__all__ = ["build_model", "parameter_dtype", "transformer_config"]

_FIELDS = {field.name for field in fields(TransformerConfig)}


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with megatron-core's constructor. The mark on its weight makes
    `finalize_model_grads` sum the gradient over sequence-parallel ranks; megatron-core's own
    wrapper refuses sequence parallelism."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_unused: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def parameter_dtype(settings: MegatronSettings) -> torch.dtype:
    """Type of the trained weights; with bf16 the optimizer keeps float32 main weights beside."""
    return torch.bfloat16 if settings.bf16 else torch.float32


def transformer_config(architecture: Architecture, settings: MegatronSettings) -> Any:
    """megatron-core's TransformerConfig, with every field of it that `architecture` has.
    `calculate_per_token_loss` makes its gradients plain sums over ranks and micro-batches: the loss
    brings its own denominator."""
    dtype = parameter_dtype(settings)
    return TransformerConfig(
        **{name: value for name, value in asdict(architecture).items() if name in _FIELDS},
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        hidden_dropout=settings.hidden_dropout,
        attention_dropout=settings.attention_dropout,
        attention_softmax_in_fp32=settings.attention_softmax_in_fp32,
        tensor_model_parallel_size=settings.tensor_model_parallel_size,
        pipeline_model_parallel_size=settings.pipeline_model_parallel_size,
        context_parallel_size=settings.context_parallel_size,
        sequence_parallel=settings.uses_sequence_parallel,
        recompute_granularity=settings.recompute_granularity,
        recompute_method=settings.recompute_method,
        recompute_num_layers=settings.recompute_num_layers,
        bf16=settings.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        calculate_per_token_loss=True,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 (the default is refused)
        use_cpu_initialization=True,
        perform_initialization=False,
        batch_p2p_sync=torch.cuda.is_available(),
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )


def build_model(architecture: Architecture, config: Any, device: torch.device) -> Any:
    """This rank's GPTModel on `device`, with parameters not yet set."""
    model = GPTModel(
        config,
        _block(architecture, config),
        vocab_size=architecture.vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=architecture.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=architecture.rotary_base,
    )
    return model.to(device)


def _block(architecture: Architecture, config: Any) -> Any:
    layer = get_gpt_layer_local_spec(
        qk_layernorm=architecture.qk_layernorm, normalization="RMSNorm"
    )
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if architecture.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    # Spelled out because a bare layer spec would bring megatron-core's own final norm.
    num_layers = architecture.num_layers // config.pipeline_model_parallel_size
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)
