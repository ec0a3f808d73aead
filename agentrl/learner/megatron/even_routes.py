"""A router's choice that is nobody's: every expert gets the same number of tokens.

Which experts a token goes to depends on numbers that a rehearsal has not. In its place token t of a
rank takes experts k * t, k * t + 1, ... of all, k being how many each takes; what the router gives
them stays its own. The same stands under the real steps that a rehearsal is compared with.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.transformer.moe import router
from torch import Tensor

__all__ = ["even_routes", "routes_of"]


@contextmanager
def even_routes() -> Iterator[None]:
    """Have all routers choose so."""
    choose = router.topk_routing_with_score_function
    router.topk_routing_with_score_function = _evenly(choose)
    try:
        yield
    finally:
        router.topk_routing_with_score_function = choose


def routes_of(num_tokens: int, num_experts: int, topk: int) -> Tensor:
    """Bool [num_tokens, num_experts], `topk` true in each row."""
    chosen = torch.arange(num_tokens * topk).remainder(num_experts).view(num_tokens, topk)
    routes = torch.zeros((num_tokens, num_experts), dtype=torch.bool)
    return routes.scatter_(1, chosen, torch.ones_like(chosen, dtype=torch.bool))


def _evenly(choose: Callable[..., Any]) -> Callable[..., Any]:
    def routed(logits: Tensor, topk: int, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        shares, _ = choose(logits, topk, *args, **named)
        num_tokens, num_experts = logits.shape
        return shares, routes_of(num_tokens, num_experts, topk)

    return routed
