"""The Megatron flags that the learner reads, and what it accepts: the one table.

Names are Megatron's own with underscores (`RunConfig.megatron`). Three kinds: settings, which
change how the model is trained; fixed ones, of which one value is right here and any other refused;
and architecture flags, which must say what the checkpoint's config.json says (`agentrl.models`).
Refused: any other name, a value out of bounds, and combinations that cannot run, all before a
process group exists.
"""

import types
import typing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.nearest import nearest

__all__ = ["MegatronSettings"]

_Count = Annotated[int, Meta(ge=1)]
_Recompute = Literal["full", "selective"]


class MegatronSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked `RunConfig.megatron`. Build it with `from_config`."""

    # ---- layout ----
    tensor_model_parallel_size: _Count = 1
    pipeline_model_parallel_size: _Count = 1
    context_parallel_size: _Count = 1
    sequence_parallel: bool = False
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    distributed_timeout_minutes: Annotated[float, Meta(gt=0)] = 10.0

    # ---- memory and precision ----
    bf16: bool = False
    accumulate_allreduce_grads_in_fp32: bool = True
    recompute_granularity: _Recompute | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: _Count | None = None

    # ---- one right value ----
    attention_softmax_in_fp32: Literal[True] = True
    optimizer: Literal["adam"] = "adam"
    attention_backend: Literal["auto", "flash"] = "auto"
    hidden_dropout: Annotated[float, Meta(ge=0, le=0)] = 0.0
    attention_dropout: Annotated[float, Meta(ge=0, le=0)] = 0.0

    # ---- architecture: compared with the checkpoint ----
    num_layers: _Count | None = None
    hidden_size: _Count | None = None
    ffn_hidden_size: _Count | None = None
    num_attention_heads: _Count | None = None
    num_query_groups: _Count | None = None
    kv_channels: _Count | None = None
    vocab_size: _Count | None = None
    max_position_embeddings: _Count | None = None
    norm_epsilon: Annotated[float, Meta(gt=0)] | None = None
    rotary_base: Annotated[float, Meta(gt=0)] | None = None
    untie_embeddings_and_output_weights: bool | None = None
    qk_layernorm: bool | None = None
    add_qkv_bias: bool | None = None
    group_query_attention: Literal[True] | None = None
    swiglu: Literal[True] | None = None
    disable_bias_linear: Literal[True] | None = None
    normalization: Literal["RMSNorm"] | None = None
    position_embedding_type: Literal["rope"] | None = None
    use_rotary_position_embeddings: Literal[True] | None = None

    @classmethod
    def from_config(cls, cfg: RunConfig) -> "MegatronSettings":
        """The checked settings of a run. Raises ConfigError naming the flag and the numbers."""
        refused: list[str] = []
        values = {name: _converted(name, value, refused) for name, value in cfg.megatron.items()}
        if refused:
            raise ConfigError("\n".join(refused))
        settings = cls(**values)
        _check_combinations(settings, cfg.num_learner_ranks)
        return settings

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica of the model."""
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
        )

    @property
    def uses_sequence_parallel(self) -> bool:
        """Sequence parallelism means nothing on one tensor-parallel rank; as in Megatron it is then
        off, so that one script serves every size."""
        return self.sequence_parallel and self.tensor_model_parallel_size > 1


_TYPES: dict[str, Any] = typing.get_type_hints(MegatronSettings, include_extras=True)


def flag(name: str) -> str:
    """The command-line spelling of a setting."""
    return "--" + name.replace("_", "-")


def _converted(name: str, value: Any, refused: list[str]) -> Any:
    """`value` as the setting's type; what is wrong with name or value is added to `refused`."""
    if name not in _TYPES:
        close = nearest(flag(name), map(flag, _TYPES))
        refused.append(f"{flag(name)} is not a Megatron setting that the learner supports{close}")
        return None
    try:
        return msgspec.convert(value, type=_TYPES[name])
    except msgspec.ValidationError as error:
        refused.append(f"{flag(name)} cannot be {value!r}: {error}{_allowed(name)}")


def _allowed(name: str) -> str:
    kind = _TYPES[name]
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    options = typing.get_args(kind) if is_union else (kind,)
    values = [v for o in options if typing.get_origin(o) is Literal for v in typing.get_args(o)]
    return f"; allowed: {', '.join(map(str, values))}" if values else ""


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
