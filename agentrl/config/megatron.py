"""The Megatron flags that the learner reads, and what it accepts: the one table.

Names are Megatron's own with underscores (`RunConfig.megatron`). Three kinds: settings, which
change how the model is trained; fixed ones, of which one value is right here and any other refused;
and architecture flags, which must say what the checkpoint's config.json says (`agentrl.models`).
Refused: any other name (`megatron_refused` says why), a value out of bounds, and combinations that
cannot run, all before a process group exists.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.config.megatron_refused import why_refused
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["LATENT_FLAGS", "MegatronSettings", "about_settings", "notes_on_settings", "taken"]

#: Architecture flags of latent attention; Megatron reads them only beside --multi-latent-attention.
LATENT_FLAGS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "mscale",
    "mscale_all_dim",
)

_Count = Annotated[int, Meta(ge=1)]
_LIST = r"\[[01](?:,[01])*\](?:\*\d{1,4})?"
_Recompute = Literal["full", "selective"]
_Module = Literal["core_attn", "layernorm", "mlp", "moe", "shared_experts", "mla_up_proj"]
_Share = Annotated[float, Meta(ge=0)]
#: A setting that nothing but training reads.
_TRAINED = Meta(extra_json_schema={"trains": True})
#: Megatron's `--moe-router-bias-update-rate`.
_BIAS_UPDATE_RATE = 0.001
_Balancing = Literal["none", "aux_loss", "seq_aux_loss", "global_aux_loss"]
_Dispatcher = Literal["alltoall", "allgather", "flex"]
#: Lists of 0 and 1, as Megatron takes them: `[0]*1+[1]*61`, or every n-th layer.
_LayerFreq = Annotated[str, Meta(pattern=rf"^([1-9]\d{{0,3}}|\(?{_LIST}(\+{_LIST})*\)?)$")]
#: Stages of a pipeline as Megatron spells them: `Et|(tt|)*3tL`.
_Stages = Annotated[str, Meta(pattern=r"^[EtmL|,()*0-9]{1,999}$")]
#: In words, what patterns say of a setting's text.
_NOTATIONS = {
    "moe_layer_freq": "a number N, of which every Nth layer has experts, or with a 1 for each "
    "layer that has them, as in [0]*1+[1]*47",
    "pipeline_model_parallel_layout": "Megatron has it, a stage between bars, as in E|ttt|ttL",
}


class MegatronSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked `RunConfig.megatron`. Build it with `from_config`."""

    # ---- layout ----
    tensor_model_parallel_size: _Count = 1
    pipeline_model_parallel_size: _Count = 1
    decoder_first_pipeline_num_layers: _Count | None = None
    decoder_last_pipeline_num_layers: _Count | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: _Stages | None = None
    num_layers_per_virtual_pipeline_stage: _Count | None = None
    num_virtual_stages_per_pipeline_rank: _Count | None = None
    context_parallel_size: _Count = 1
    expert_model_parallel_size: _Count = 1
    expert_tensor_parallel_size: _Count | None = None
    sequence_parallel: bool = False
    make_vocab_size_divisible_by: _Count = 1
    use_distributed_optimizer: Annotated[bool, _TRAINED] = False
    overlap_grad_reduce: Annotated[bool, _TRAINED] = False
    overlap_param_gather: Annotated[bool, _TRAINED] = False
    distributed_timeout_minutes: Annotated[float, Meta(gt=0)] = 10.0

    # ---- memory and precision ----
    bf16: bool = False
    accumulate_allreduce_grads_in_fp32: Annotated[bool, _TRAINED] = True
    optimizer_cpu_offload: Annotated[bool, _TRAINED] = False
    optimizer_offload_fraction: Annotated[Annotated[float, Meta(ge=0, le=1)], _TRAINED] = 1.0
    overlap_cpu_optimizer_d2h_h2d: Annotated[bool, _TRAINED] = False
    use_precision_aware_optimizer: Annotated[bool, _TRAINED] = False
    recompute_granularity: Annotated[_Recompute | None, _TRAINED] = None
    recompute_method: Annotated[Literal["uniform", "block"] | None, _TRAINED] = None
    recompute_num_layers: Annotated[_Count | None, _TRAINED] = None
    recompute_modules: Annotated[Annotated[list[_Module], Meta(min_length=1)] | None, _TRAINED] = (
        None
    )
    deterministic_mode: bool = False

    # ---- what a new run takes of --load: the weights alone ----
    no_load_optim: Annotated[bool, _TRAINED] = False
    finetune: Annotated[bool, _TRAINED] = False

    # ---- experts: how they are kept busy ----
    moe_router_load_balancing_type: Annotated[_Balancing, _TRAINED] = "aux_loss"
    moe_aux_loss_coeff: Annotated[_Share, _TRAINED] = 0.0
    moe_router_bias_update_rate: Annotated[_Share | None, _TRAINED] = None
    moe_enable_routing_replay: bool = False

    # ---- experts: how tokens come to them ----
    moe_token_dispatcher_type: _Dispatcher = "alltoall"  # noqa: S105

    # ---- layers of multi-token prediction, where they are trained ----
    mtp_loss_scaling_factor: Annotated[_Share, _TRAINED] = 0.2

    # ---- one right value ----
    moe_router_dtype: Literal["fp32"] = "fp32"
    attention_softmax_in_fp32: Literal[True] = True
    cp_comm_type: Literal["all_gather"] = "all_gather"
    optimizer: Annotated[Literal["adam"], _TRAINED] = "adam"
    hidden_dropout: Annotated[float, Meta(ge=0, le=0)] = 0.0
    attention_dropout: Annotated[float, Meta(ge=0, le=0)] = 0.0

    # ---- architecture: compared with the checkpoint ----
    num_layers: _Count | None = None
    mtp_num_layers: Annotated[int, Meta(ge=0)] | None = None
    hidden_size: _Count | None = None
    ffn_hidden_size: _Count | None = None
    num_attention_heads: _Count | None = None
    num_query_groups: _Count | None = None
    kv_channels: _Count | None = None
    vocab_size: _Count | None = None
    max_position_embeddings: _Count | None = None
    norm_epsilon: Annotated[float, Meta(gt=0)] | None = None
    rotary_base: Annotated[float, Meta(gt=0)] | None = None
    rotary_percent: Annotated[float, Meta(gt=0, le=1)] | None = None
    rotary_interleaved: bool | None = None
    rotary_scaling_factor: Annotated[float, Meta(gt=0)] | None = None
    rope_scaling_factor: Annotated[float, Meta(gt=0)] | None = None
    use_rope_scaling: bool | None = None
    untie_embeddings_and_output_weights: bool | None = None
    qk_layernorm: bool | None = None
    add_qkv_bias: bool | None = None
    multi_latent_attention: bool | None = None
    q_lora_rank: _Count | None = None
    kv_lora_rank: _Count | None = None
    qk_head_dim: _Count | None = None
    qk_pos_emb_head_dim: _Count | None = None
    v_head_dim: _Count | None = None
    mscale: Annotated[float, Meta(ge=0)] | None = None
    mscale_all_dim: Annotated[float, Meta(ge=0)] | None = None
    post_self_attn_layernorm: bool | None = None
    post_mlp_layernorm: bool | None = None
    attention_output_gate: bool | None = None
    use_gated_attention: bool | None = None
    apply_layernorm_1p: bool | None = None
    num_experts: _Count | None = None
    moe_layer_freq: _LayerFreq | None = None
    moe_ffn_hidden_size: _Count | None = None
    moe_shared_expert_intermediate_size: _Count | None = None
    moe_shared_expert_gate: bool | None = None
    moe_router_topk: _Count | None = None
    moe_router_score_function: Literal["softmax", "sigmoid"] | None = None
    moe_router_pre_softmax: bool | None = None
    moe_router_enable_expert_bias: bool | None = None
    moe_router_num_groups: _Count | None = None
    moe_router_group_topk: _Count | None = None
    moe_router_topk_scaling_factor: Annotated[float, Meta(gt=0)] | None = None
    group_query_attention: Literal[True] | None = None
    swiglu: Literal[True] | None = None
    disable_bias_linear: Literal[True] | None = None
    normalization: Literal["RMSNorm"] | None = None
    position_embedding_type: Literal["rope"] | None = None
    use_rotary_position_embeddings: Literal[True] | None = None

    @classmethod
    def from_config(cls, cfg: RunConfig) -> "MegatronSettings":
        """The checked settings of a run. Raises ConfigError naming the flag and the numbers."""
        if refused := about_settings(cfg.megatron):
            raise ConfigError("\n".join(refused))
        values = {name: _converted(name, value) for name, value in cfg.megatron.items()}
        if cfg.replays_engine_routes:
            values["moe_enable_routing_replay"] = True
        settings = cls(**values)
        if "mtp_loss_scaling_factor" in values and not cfg.enable_mtp_training:
            raise ConfigError(
                f"--mtp-loss-scaling-factor {settings.mtp_loss_scaling_factor:g} is read with "
                "--enable-mtp-training alone: give it as well, or leave this out"
            )
        _check_combinations(settings, cfg.num_learner_ranks)
        _check_optimizer(settings, is_on_cuda=cfg.device == "cuda")
        return settings

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica of the model."""
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
        )

    def layers_with_experts(self, num_layers: int) -> list[int] | None:
        """What `--moe-layer-freq` says of each layer: 1 with experts, else 0."""
        text = self.moe_layer_freq
        if text is None or text.isdecimal():
            every = text and int(text)
            return [int(layer % every == 0) for layer in range(num_layers)] if every else None
        found: list[int] = []
        for digits, times in re.findall(r"\[([01,]+)\](?:\*(\d+))?", text):
            found += [int(digit) for digit in digits.split(",")] * int(times or 1)
        return found

    @property
    def ranks_of_an_expert(self) -> int:
        """Tensor-parallel ranks that hold one expert. megatron-core reduces the gradients of
        experts apart only where ranks share them out; else they are cut as all other weights."""
        if self.expert_tensor_parallel_size is not None:
            return self.expert_tensor_parallel_size
        return self.tensor_model_parallel_size if self.expert_model_parallel_size == 1 else 1

    @property
    def gathers_tokens(self) -> bool:
        """Whether every rank that shares experts gets the tokens of all; else each token goes to
        the ranks of its experts, also under `flex`, which is Megatron's way to do so on GPUs."""
        return self.moe_token_dispatcher_type == "allgather"  # noqa: S105

    @property
    def bias_update_rate(self) -> float:
        """What the correction bias of a router moves by in a step: Megatron's default beside the
        flag of the bias. Without either it stays, for no flag of the run speaks of it."""
        if self.moe_router_bias_update_rate is not None:
            return self.moe_router_bias_update_rate
        return _BIAS_UPDATE_RATE if self.moe_router_enable_expert_bias else 0.0

    @property
    def uses_sequence_parallel(self) -> bool:
        """Sequence parallelism means nothing on one tensor-parallel rank; as in Megatron it is then
        off, so that one script serves every size."""
        return self.sequence_parallel and self.tensor_model_parallel_size > 1


_TYPES: dict[str, Any] = typing.get_type_hints(MegatronSettings, include_extras=True)


def flag(name: str) -> str:
    """The command-line spelling of a setting."""
    return "--" + name.replace("_", "-")


def about_settings(values: Mapping[str, Any]) -> list[str]:
    """A line for each name that the learner does not know, and each value that it cannot take."""
    refused = []
    for name, value in values.items():
        if name not in _TYPES:
            refused.append(_about_unread(name))
            continue
        try:
            _converted(name, value)
        except msgspec.ValidationError as error:
            why = f"{error}{_allowed(name)}"
            if isinstance(value, str) and name in _NOTATIONS:
                why = f"it is written as {_NOTATIONS[name]}"
            refused.append(f"{flag(name)} cannot be {value!r}: {why}")
    return refused


def notes_on_settings(cfg: RunConfig) -> Iterator[str]:
    """Which settings nothing reads where a model is only scored."""
    given = [flag(name) for name in cfg.megatron if name in _TYPES and _is_of_training(name)]
    if given and cfg.mode == "eval":
        yield f"{', '.join(given)}: no effect under --eval-only, which trains nothing"


def _is_of_training(name: str) -> bool:
    return _TRAINED in typing.get_args(_TYPES[name])


def taken(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that `about_settings` has nothing against."""
    return {name: value for name, value in values.items() if not about_settings({name: value})}


def _about_unread(name: str) -> str:
    if reason := why_refused(name):
        return f"{flag(name)} is not supported: {reason}"
    return f"{flag(name)} is not a Megatron setting that the learner supports"


def _converted(name: str, value: Any) -> Any:
    """`value` as the setting's type. Raises ValidationError."""
    return msgspec.convert(value, type=_TYPES[name])


def _allowed(name: str) -> str:
    values = ", ".join(map(str, _literals(_TYPES[name])))
    return f"; allowed: {values}" if values else ""


def _literals(kind: Any) -> Iterator[Any]:
    for part in typing.get_args(kind):
        if typing.get_origin(kind) is Literal:
            yield part
        else:
            yield from _literals(part)


def _check_combinations(settings: MegatronSettings, num_ranks: int) -> None:
    size = settings.model_parallel_size
    if num_ranks % size:
        raise ConfigError(
            f"{num_ranks} learner ranks cannot hold whole replicas of {size} ranks "
            f"(tensor {settings.tensor_model_parallel_size} x "
            f"pipeline {settings.pipeline_model_parallel_size} x "
            f"context {settings.context_parallel_size}); change --actor-num-gpus-per-node or "
            f"--actor-num-nodes to a multiple of {size}"
        )
    _check_experts(settings, num_ranks)
    if settings.overlap_param_gather and not (
        settings.use_distributed_optimizer and settings.overlap_grad_reduce
    ):
        raise ConfigError(
            "--overlap-param-gather needs --use-distributed-optimizer and --overlap-grad-reduce"
        )
    if settings.recompute_granularity == "full":
        if settings.recompute_method is None or settings.recompute_num_layers is None:
            raise ConfigError(
                "--recompute-granularity full needs --recompute-method and --recompute-num-layers"
            )
    elif settings.recompute_method is not None or settings.recompute_num_layers is not None:
        raise ConfigError(
            "--recompute-method and --recompute-num-layers need --recompute-granularity full"
        )
    if settings.recompute_modules is not None and settings.recompute_granularity != "selective":
        raise ConfigError("--recompute-modules needs --recompute-granularity selective")


def _check_optimizer(settings: MegatronSettings, *, is_on_cuda: bool) -> None:
    """What Megatron demands of an optimizer whose state is not whole, in float32 and beside the
    weights; without CUDA it is, and the distributed optimizer is not needed."""
    if settings.optimizer_cpu_offload and not settings.use_precision_aware_optimizer:
        raise ConfigError("--optimizer-cpu-offload needs --use-precision-aware-optimizer")
    if settings.overlap_cpu_optimizer_d2h_h2d and not settings.optimizer_cpu_offload:
        raise ConfigError("--overlap-cpu-optimizer-d2h-h2d needs --optimizer-cpu-offload")
    if settings.optimizer_cpu_offload and is_on_cuda and not settings.bf16:
        raise ConfigError(
            "--optimizer-cpu-offload needs --bf16: megatron-core's optimizer on the host takes the "
            "copies that it makes of bfloat16 weights alone"
        )
    is_distributed = settings.use_distributed_optimizer or not is_on_cuda
    if settings.use_precision_aware_optimizer and not is_distributed:
        raise ConfigError("--use-precision-aware-optimizer needs --use-distributed-optimizer")


def _check_experts(settings: MegatronSettings, num_ranks: int) -> None:
    experts, cut = settings.expert_model_parallel_size, settings.ranks_of_an_expert
    stages = settings.pipeline_model_parallel_size
    if settings.moe_aux_loss_coeff > 0 and settings.moe_router_load_balancing_type != "aux_loss":
        raise ConfigError(
            f"--moe-aux-loss-coeff {settings.moe_aux_loss_coeff:g} needs "
            "--moe-router-load-balancing-type aux_loss: sequences are packed, of which "
            "megatron-core takes all of a micro-batch for one (seq_aux_loss), and ranks have "
            "micro-batches of their own number (global_aux_loss)"
        )
    if num_ranks % (size := cut * experts * stages):
        raise ConfigError(
            f"{num_ranks} learner ranks cannot hold whole sets of experts of {size} ranks "
            f"(expert {experts} x expert tensor {cut} x pipeline {stages}); change "
            f"--actor-num-gpus-per-node or --actor-num-nodes to a multiple of {size}"
        )
