"""How experts are kept equally busy: the auxiliary loss, and the correction bias that moves.

Both are megatron-core's. It multiplies the auxiliary loss of a micro-batch by its tokens, because
it divides gradients by all tokens of a step at the end. Here the loss brings its own denominator
and nothing is divided, so the coefficient is. The bias moves when gradients are reduced, by the
tokens that each expert got; in a step that is then skipped it is put back. Padding is left out of
both (`padding`).
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from agentrl.algorithms.rows import MicroBatch
from agentrl.learner.megatron import parallel

__all__ = ["correction_biases", "divide_auxiliary_loss"]


def divide_auxiliary_loss(config: Any, coefficient: float, own: Sequence[MicroBatch]) -> None:
    """Make the gradient of the auxiliary loss `coefficient` times that of its mean over the tokens
    of a step, of which this rank has its `own`. Collective; routers read `config` at each pass.

    megatron-core multiplies by the tokens of a rank, and they are those of a micro-batch shared by
    its tensor and context ranks. Tokens that pad or fill up are none (`padding`)."""
    if coefficient > 0:
        (num_tokens,) = parallel.all_reduce_sum([sum(len(batch.tokens_T) for batch in own)])
        shares = config.tensor_model_parallel_size * config.context_parallel_size
        config.moe_aux_loss_coeff = coefficient * shares / max(num_tokens, 1)


def correction_biases(model: Any) -> list[tuple[Tensor, Tensor]]:
    """The correction bias of each router here, and a copy of it."""
    biases = (getattr(module, "expert_bias", None) for module in model.modules())
    return [(bias, bias.clone()) for bias in biases if bias is not None]
