"""A layer of gpt-oss: the usual one with a sink in each head, and experts with biases."""

from typing import Any

from megatron.core.tensor_parallel.layers import RowParallelLinear
from torch import Tensor

from agentrl.learner.megatron.layers import decoder
from agentrl.learner.megatron.sink_attention import SinkAttention
from agentrl.models.architecture import Architecture

__all__ = ["layer"]


def layer(architecture: Architecture, config: Any, index: int) -> Any:
    """The spec of layer `index`."""
    spec = decoder.layer(architecture, config, index)
    parts = spec.submodules
    parts.self_attention.submodules.core_attention = SinkAttention
    parts.mlp.submodules.experts.submodules.linear_fc2 = _ExpertOutput
    return spec


class _ExpertOutput(RowParallelLinear):  # type: ignore[misc]
    """An output in memory of its own: megatron-core adds the bias of an expert in place, which
    autograd refuses on the view that it gets from one rank. And a bias of one expert: under
    sequence parallelism megatron-core takes it for a copy of that of the other tensor-parallel
    ranks, which have other experts, and would sum their gradients."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.bias.sequence_parallel = False

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """[tokens, hidden], and the bias that is still to be added."""
        out, bias = super().forward(input_)
        return out.clone(), bias
