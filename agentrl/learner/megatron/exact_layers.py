"""`--true-on-policy-mode` in the learner: values by `agentrl.exact`, gradients by the usual layers.

Each layer that computes is exchanged for one that gives the same bits for a token as an engine in
that mode, whatever it is packed with. Where there is a gradient, the usual layer is asked as well,
and its derivative is taken at the exact inputs.
Refused: a model with parameters in any other layer.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from torch import Tensor
from torch.nn.functional import silu

from agentrl import exact
from agentrl.errors import ConfigError
from agentrl.learner.megatron.attention import PackedAttention
from agentrl.learner.megatron.head import Head
from agentrl.learner.megatron.norms import RMSNorm

__all__ = ["exact_logprobs", "make_exact"]


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, usual: Tensor, value: Tensor) -> Tensor:
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _with_gradient(usual: Callable[[], Tensor], value: Callable[[], Tensor]) -> Tensor:
    """`value`, with the gradient of `usual`."""
    if not torch.is_grad_enabled():
        return value()
    plain = usual()
    with torch.no_grad():
        found = value()
    out: Tensor = _WithGradientOf.apply(plain, found)  # type: ignore[no-untyped-call]
    return out


class _Linear:
    """Over a linear layer of megatron-core, of one tensor-parallel rank."""

    def _forward_impl(
        self, input: Tensor, weight: Tensor, *rest: Any, bias: Tensor | None = None, **named: Any
    ) -> Tensor:
        def value() -> Tensor:
            out = exact.product(input, weight)
            return out if bias is None else out + bias

        usual = super()._forward_impl  # type: ignore[misc]
        return _with_gradient(lambda: usual(input, weight, *rest, bias=bias, **named), value)


class _Column(_Linear, ColumnParallelLinear):  # type: ignore[misc]
    pass


class _Row(_Linear, RowParallelLinear):  # type: ignore[misc]
    pass


class _Norm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        usual, epsilon = super().forward, float(self.eps or 0.0)
        return _with_gradient(lambda: usual(x), lambda: exact.rms_norm(x, self.weight, epsilon))


class _Attention(PackedAttention):
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        usual, scale = super()._attend, self.softmax_scale or query.shape[-1] ** -0.5
        return _with_gradient(
            lambda: usual(query, key, value, **how),
            lambda: exact.causal(query, key, value, scale),
        )


def _silu(x: Tensor) -> Tensor:
    return _with_gradient(lambda: silu(x), lambda: exact.silu(x))


_EXACT = {
    ColumnParallelLinear: _Column,
    RowParallelLinear: _Row,
    RMSNorm: _Norm,
    PackedAttention: _Attention,
}
#: A look-up, and a layer that computes nothing itself: see `exact_logprobs`.
_AS_THEY_ARE = (VocabParallelEmbedding, Head)


def make_exact(model: torch.nn.Module, config: Any) -> None:
    """Exchange the layers of a model, and the activation in megatron-core's configuration of it.
    Raises ConfigError for a model that has others."""
    for name, module in model.named_modules():
        kind = _EXACT.get(type(module))
        if kind is not None:
            module.__class__ = kind
        elif [*module.parameters(recurse=False)] and not isinstance(module, _AS_THEY_ARE):
            raise ConfigError(
                f"--true-on-policy-mode: {name} is a {type(module).__name__}, which is not "
                "computed exactly here; leave the flag out for this model"
            )
    config.activation_func = _silu


def exact_logprobs(
    usual_T: Tensor,
    hidden_TH: Tensor,
    weight_VH: Tensor,
    labels_T: Tensor,
    temperature: float | Tensor,
) -> Tensor:
    """[T], of an output layer and its softmax; `usual_T` has the gradient."""
    return _with_gradient(
        lambda: usual_T,
        lambda: exact.label_logprobs(hidden_TH, weight_VH, labels_T, temperature),
    )
