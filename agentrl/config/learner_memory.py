"""What weights, gradients and optimizer take on one rank of the learner, as bytes.

    float32   weight 4 + gradient 4 + Adam's moments 8
    bfloat16  weight 2 + gradient 4 (2 with --no-accumulate-allreduce-grads-in-fp32)
              + float32 weight 4 + Adam's moments 8

Tensor and pipeline ranks share all of it, as if every tensor could be cut; a distributed optimizer
shares its part over data- and context-parallel ranks as well. A reference model has weights alone.
Activations come on top.
"""

from agentrl.config.run import RunConfig

__all__ = ["learner_bytes"]

_MOMENTS = 8


def learner_bytes(config: RunConfig, num_parameters: int) -> int:
    """About what one rank needs for a model of `num_parameters`."""
    settings = config.megatron
    is_bf16 = settings.get("bf16", False)
    weight = 2 if is_bf16 else 4
    in_float32 = settings.get("accumulate_allreduce_grads_in_fp32", True)
    gradient = 4 if in_float32 else weight
    optimizer = _MOMENTS + (4 if is_bf16 else 0)
    parts: int = settings.get("tensor_model_parallel_size", 1)
    parts *= settings.get("pipeline_model_parallel_size", 1)
    shards = 1
    if settings.get("use_distributed_optimizer", False):
        shards = max(1, config.num_learner_ranks // parts)
    has_reference = config.use_kl_loss
    per_parameter = weight * (1 + has_reference) + gradient + optimizer / shards
    return int(num_parameters * per_parameter / parts)
