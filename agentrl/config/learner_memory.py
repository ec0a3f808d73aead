"""What weights, gradients and optimizer take on one rank of the learner, and in a checkpoint, as
bytes.

    float32   weight 4 + gradient 4 + Adam's moments 8
    bfloat16  weight 2 + gradient 4 (2 with --no-accumulate-allreduce-grads-in-fp32)
              + float32 weight 4 + Adam's moments 8

Tensor and pipeline ranks share all of it, as if every tensor could be cut; experts are shared by
pipeline, expert and expert-tensor ranks. A distributed optimizer shares its part over the ranks
that hold copies as well. A reference model and a teacher have weights alone, a critic has what
the policy has. Activations come on top.

`models`: those that the algorithm needs beside the policy; None: as flags tell.
"""

from collections.abc import Collection

from agentrl.config.run import RunConfig

__all__ = ["checkpoint_bytes", "learner_bytes"]

_MOMENTS = 8


def checkpoint_bytes(
    config: RunConfig, num_parameters: int, models: Collection[str] | None = None
) -> int:
    """About what a checkpoint takes: weights and what the optimizer keeps beside them."""
    num_trained = num_parameters * _num_trained(_beside(config, models))
    return num_trained * (14 if config.megatron.get("bf16", False) else 12)


def _beside(config: RunConfig, models: Collection[str] | None) -> Collection[str]:
    return config.models_beside if models is None else models


def _num_trained(models: Collection[str]) -> int:
    return 1 + ("critic" in models)


def learner_bytes(
    config: RunConfig,
    num_parameters: int,
    num_in_experts: int = 0,
    models: Collection[str] | None = None,
) -> int:
    """About what one rank needs for a model of `num_parameters`, `num_in_experts` of them in
    experts that ranks can share out."""
    settings, beside = config.megatron, _beside(config, models)
    stages: int = settings.get("pipeline_model_parallel_size", 1)
    tensor: int = settings.get("tensor_model_parallel_size", 1)
    experts: int = settings.get("expert_model_parallel_size", 1)
    cut: int = settings.get("expert_tensor_parallel_size") or (tensor if experts == 1 else 1)
    in_experts = num_in_experts * _per_parameter(config, stages * experts * cut, beside)
    in_rest = (num_parameters - num_in_experts) * _per_parameter(config, stages * tensor, beside)
    return int(in_experts + in_rest)


def _per_parameter(config: RunConfig, parts: int, models: Collection[str]) -> float:
    """Bytes on one rank for each parameter of what so many ranks share."""
    settings = config.megatron
    is_bf16 = settings.get("bf16", False)
    weight = 2 if is_bf16 else 4
    in_float32 = settings.get("accumulate_allreduce_grads_in_fp32", True)
    gradient = 4 if in_float32 else weight
    optimizer: float = _MOMENTS + (4 if is_bf16 else 0)
    shards = 1
    if settings.get("use_distributed_optimizer", False):
        shards = max(1, config.num_learner_ranks // parts)
    if config.device == "cuda" and settings.get("optimizer_cpu_offload", False):
        optimizer *= 1 - settings.get("optimizer_offload_fraction", 1.0)
    num_trained = _num_trained(models)
    trained = (weight + gradient + optimizer / shards) * num_trained
    whole: float = trained + weight * (1 + len(models) - num_trained)
    return whole / parts
