"""Whole sequences under context parallelism, for a layer that computes each head by itself.

A context-parallel rank holds some tokens (`zigzag`) of all heads. One all-to-all gives it all
tokens of some heads, in the order of the packed sequences, and another brings the results back:
each rank computes its share of the heads, and nothing is computed twice. DeepSpeed-Ulysses,
https://arxiv.org/abs/2309.14509. Both ways only move numbers, so each is the gradient of the other.

C = context-parallel ranks, L = tokens of this rank, P = C * L = tokens of all of them, G = heads,
S = G / C = heads of this rank's share, X = channels of a head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.learner.megatron.zigzag import gathered_order

__all__ = ["share_of", "to_heads", "to_tokens"]


class _Places(NamedTuple):
    """Of one micro-batch: where each position of the packed sequences lies among the tokens of all
    ranks, one rank after the other, and which position each of those has."""

    group: Any
    order_P: Tensor
    held_P: Tensor


_Way = Callable[[Tensor, _Places], Tensor]


def to_heads(x_LGX: Tensor, packed: Any, group: Any) -> Tensor:
    """[P, S, X]: all tokens of megatron-core's packed sequences, of this rank's share of the heads.
    Differentiable."""
    if group.size() == 1:
        return x_LGX
    places = _places_of(packed, group)
    moved: Tensor = _Moved.apply(x_LGX, places, _to_heads, _to_tokens)  # type: ignore[no-untyped-call]
    return moved


def to_tokens(x_PSX: Tensor, packed: Any, group: Any) -> Tensor:
    """[L, G, X]: this rank's tokens, of all heads. Differentiable."""
    if group.size() == 1:
        return x_PSX
    places = _places_of(packed, group)
    moved: Tensor = _Moved.apply(x_PSX, places, _to_tokens, _to_heads)  # type: ignore[no-untyped-call]
    return moved


def share_of(whole: Tensor, group: Any) -> Tensor:
    """What a parameter that is ordered by heads has for this rank's share of them. Other ranks use
    the rest: the gradient of the whole is the sum over ranks, as that of any parameter."""
    share: Tensor = whole.chunk(group.size())[group.rank()]
    return share


def _places_of(packed: Any, group: Any) -> _Places:
    """Made once for all layers: lengths are read from the device."""
    found: _Places | None = getattr(packed, "_places", None)
    if found is None:
        ends: Tensor = packed.cu_seqlens_q
        order_P = gathered_order(ends.diff().tolist(), group.size())
        found = _Places(group, order_P.to(ends.device), order_P.argsort().to(ends.device))
        packed._places = found
    return found


def _all_to_all(blocks_C: Tensor, group: Any) -> Tensor:
    """Block r of this rank to rank r, and that of each rank for this one."""
    received = torch.empty_like(blocks_C)
    dist.all_to_all_single(received, blocks_C, group=group)
    return received


def _to_heads(x_LGX: Tensor, places: _Places) -> Tensor:
    x_CLSX = torch.stack(x_LGX.chunk(places.group.size(), 1))
    return _all_to_all(x_CLSX, places.group).flatten(0, 1)[places.order_P]


def _to_tokens(x_PSX: Tensor, places: _Places) -> Tensor:
    x_CLSX = x_PSX[places.held_P].view(places.group.size(), -1, *x_PSX.shape[1:])
    return _all_to_all(x_CLSX, places.group).transpose(0, 1).flatten(1, 2)


class _Moved(torch.autograd.Function):
    """Numbers go one way, `there`, and their gradients the other, `back`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: _Places, there: _Way, back: _Way) -> Tensor:
        ctx.places, ctx.back = places, back
        return there(x, places)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        return ctx.back(grads[0], ctx.places), None, None, None
