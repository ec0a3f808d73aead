"""A router's choice that is nobody's: experts get the same number of tokens, or those of the first
rank get more.

Which experts a token goes to depends on numbers that a rehearsal has not. In its place the tokens
of a rank take the experts in turn, as many as each takes; what the router gives them stays its own.
`Skew` gives the experts of the first rank more than their share. The same stands under the real
steps that a rehearsal is compared with.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from megatron.core.transformer.moe import router
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.experts import Experts

__all__ = ["EVEN", "Skew", "made_routes", "require_skew", "routes_of"]

#: Steps of an imbalance: it is rounded to a thousandth.
_STEPS = 1000


class Skew(msgspec.Struct, frozen=True):
    """How uneven routes are: the experts of the first of `num_ranks` ranks get `imbalance` times an
    even share of the tokens (1: no more), all others the same of what is left."""

    imbalance: float = 1.0
    num_ranks: int = 1


EVEN = Skew()


def require_skew(skew: Skew, architecture: Architecture) -> None:
    """ConfigError for an imbalance that the model's routers cannot have."""
    if skew.imbalance == 1:
        return
    if not isinstance(architecture, Experts):
        raise ConfigError(f"--moe-imbalance {skew.imbalance:g}: the model has no experts")
    if skew.num_ranks == 1:
        raise ConfigError(
            f"--moe-imbalance {skew.imbalance:g}: every rank has all experts, so none gets more;"
            " it is for --expert-model-parallel-size above 1"
        )
    of_a_rank = architecture.num_moe_experts // skew.num_ranks
    topk = architecture.moe_router_topk
    most = skew.num_ranks * min(of_a_rank, topk) / topk
    if skew.imbalance > most:
        raise ConfigError(
            f"--moe-imbalance {skew.imbalance:g}: a token takes {topk} experts, of which a rank has"
            f" {of_a_rank}, so a rank gets at most {most:g} times an even share"
        )


@contextmanager
def made_routes(skew: Skew = EVEN) -> Iterator[None]:
    """Have all routers choose so."""
    choose = router.topk_routing_with_score_function
    router.topk_routing_with_score_function = _made(choose, skew)
    try:
        yield
    finally:
        router.topk_routing_with_score_function = choose


def routes_of(num_tokens: int, num_experts: int, topk: int, skew: Skew = EVEN) -> Tensor:
    """Bool [num_tokens, num_experts], `topk` true in each row."""
    slots = torch.arange(num_tokens * topk)
    if skew.imbalance == 1:
        chosen = slots.remainder(num_experts).view(num_tokens, topk)
    else:
        chosen = _skewed(slots.view(num_tokens, topk), num_experts, skew)
    routes = torch.zeros((num_tokens, num_experts), dtype=torch.bool)
    return routes.scatter_(1, chosen, torch.ones_like(chosen, dtype=torch.bool))


def _skewed(slots: Tensor, num_experts: int, skew: Skew) -> Tensor:
    """The expert of each slot [num_tokens, topk]: the first slots of a token are of the first
    rank, so many that these are their share of all slots so far; each rank's experts in turn."""
    first = num_experts // skew.num_ranks
    share, whole = round(_STEPS * skew.imbalance), _STEPS * skew.num_ranks
    topk = slots.shape[1]
    before = slots[:, :1]
    of_first = before * share // whole
    here = (before + topk) * share // whole - of_first
    column = slots - before
    in_first = (of_first + column).remainder(first)
    elsewhere = first + (before - of_first + column - here).remainder(num_experts - first)
    return torch.where(column < here, in_first, elsewhere)


def _made(choose: Callable[..., Any], skew: Skew) -> Callable[..., Any]:
    def routed(logits: Tensor, topk: int, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        shares, _ = choose(logits, topk, *args, **named)
        num_tokens, num_experts = logits.shape
        return shares, routes_of(num_tokens, num_experts, topk, skew)

    return routed
