"""The output layer of a model that is scored: it hands on hidden states and makes no logits.

megatron-core's own makes the logits of all positions; `logprob` makes a block of them at a time.
"""

from typing import Any

from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.utils import unwrap_model
from torch import Tensor

__all__ = ["Head", "put_head", "weight_of_head"]


class Head(ColumnParallelLinear):  # type: ignore[misc]
    """Whole hidden states, whose gradient is summed over the ranks: each has a share of the
    vocabulary alone. In all else, how its weight is gathered, tied and saved, it stays the layer
    that megatron-core made."""

    def forward(
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: Any = None
    ) -> tuple[Tensor, None]:
        # In a tuple, for as an attribute it would become a second parameter.
        self.in_use = (self.weight if weight is None else weight,)
        whole = (
            gather_from_sequence_parallel_region
            if self.sequence_parallel
            else copy_to_tensor_model_parallel_region
        )
        return whole(input_, group=self.tp_group), None


def put_head(model: Any) -> None:
    """Have the last stage of a pipeline return hidden states [1, L, H]."""
    if model.post_process:
        model.output_layer.__class__ = Head


def weight_of_head(model: Any) -> Tensor:
    """[V, H], this rank's share of the vocabulary, as the last pass used it."""
    (weight,) = unwrap_model(model).output_layer.in_use
    return weight  # type: ignore[no-any-return]
