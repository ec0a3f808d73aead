"""The output layer of a critic: one number for each position, in float32.

Every tensor-parallel rank holds all of it. Without sequence parallelism they compute the same.
With it each computes the values of its share of the positions and has that share's part of the
gradient, so megatron-core is told to add these parts up (`sequence_parallel`). Weight and bias
begin at 0: a new critic values every state at 0, whatever the layout. (slime draws the weight from
a normal distribution of deviation 0.02.)
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.utils import unwrap_model
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["HEAD", "has_value_head", "put_value_head"]

#: What the names of its tensors begin with.
HEAD = "output_layer."


class _ValueHead(nn.Linear):
    def __init__(self, config: Any, group: Any) -> None:
        super().__init__(config.hidden_size, 1, dtype=config.params_dtype)
        self._group = group
        self._is_sharing = config.sequence_parallel
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
                mark: Any = parameter
                mark.sequence_parallel = self._is_sharing

    def forward(  # type: ignore[override]
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: Any = None
    ) -> tuple[Tensor, None]:
        values = linear(input_.float(), self.weight.float(), self.bias.float())
        if self._is_sharing:
            # The loss above is computed by each rank, so a share has its whole gradient already.
            values = gather_from_sequence_parallel_region(
                values, tensor_parallel_output_grad=False, group=self._group
            )
        return values, None


def put_value_head(model: Any, config: Any) -> None:
    """Have the last stage of a pipeline return values [1, L, 1]."""
    if model.post_process:
        model.output_layer = _ValueHead(config, model.output_layer.tp_group)


def has_value_head(stage: Any) -> bool:
    """Whether a stage of the pipeline ends with the values of a critic."""
    return isinstance(getattr(unwrap_model(stage), "output_layer", None), _ValueHead)
