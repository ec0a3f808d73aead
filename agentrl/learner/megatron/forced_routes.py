"""Routes in the place of a router's: the experts get the same number of tokens, or those of the
first rank get more.

A router chooses by numbers that a rehearsal does not have. Here the tokens of a rank take the
experts in turn, and each token takes as many as in the model; the weights of its experts are still
the router's. `Skew` gives the experts of the first rank more than an even share. The real steps
that a rehearsal is compared with run on the same routes.
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

__all__ = ["EVEN", "Skew", "forced_routes", "require_skew", "routes_of"]

#: Parts of an even share: an imbalance is rounded down to a thousandth.
_STEPS = 1000


class Skew(msgspec.Struct, frozen=True):
    """How uneven routes are. The experts of the first of `num_ranks` expert-parallel ranks get
    `imbalance` times an even share of the tokens; all others share the rest evenly."""

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
def forced_routes(skew: Skew = EVEN) -> Iterator[None]:
    """Within it, all routers choose by `skew`."""
    choose = router.topk_routing_with_score_function
    router.topk_routing_with_score_function = _made(choose, skew)
    try:
        yield
    finally:
        router.topk_routing_with_score_function = choose


def routes_of(num_tokens: int, num_experts: int, topk: int, skew: Skew = EVEN) -> Tensor:
    """Which experts each token takes: bool [num_tokens, num_experts], `topk` of each row true."""
    slots = torch.arange(num_tokens * topk)
    if skew.imbalance == 1:
        chosen = slots.remainder(num_experts).view(num_tokens, topk)
    else:
        chosen = _skewed(slots.view(num_tokens, topk), num_experts, skew)
    routes = torch.zeros((num_tokens, num_experts), dtype=torch.bool)
    return routes.scatter_(1, chosen, torch.ones_like(chosen, dtype=torch.bool))


def _skewed(slots: Tensor, num_experts: int, skew: Skew) -> Tensor:
    """The expert of each slot, both [num_tokens, topk]. The first slots of each token go to the
    first rank, so many that it has its share of all slots so far. The experts of the first rank
    take turns, and so do all others."""
    first = num_experts // skew.num_ranks
    share, whole = int(_STEPS * skew.imbalance), _STEPS * skew.num_ranks
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
