"""`Routes`: where the experts that engines chose stand in a trajectory, and of which layers."""

import msgspec

from agentrl.columns import Column
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.experts import Experts

__all__ = ["Routes", "routes_of"]


class Routes(msgspec.Struct, frozen=True):
    """Of each token the experts of the token before it, in the layers that have some.

    `column` has for each token (layers with experts, experts of a token) numbers of experts, or its
    fill where nobody knows them. `layers`: which of the `num_layers` have experts, from 0.
    `num_experts`: how many there are in each of these.
    """

    column: Column
    num_layers: int
    layers: tuple[int, ...]
    num_experts: int


def routes_of(architecture: Architecture) -> Routes:
    """Those of a model. ConfigError for one without experts."""
    if not isinstance(architecture, Experts):
        raise ConfigError(
            f"a {architecture.name} has no experts, which --use-rollout-routing-replay is for"
        )
    layers = tuple(filter(architecture.has_experts, range(architecture.num_layers)))
    dtype, fill = ("|u1", 2**8 - 1) if architecture.num_moe_experts < 2**8 else ("<u2", 2**16 - 1)
    shape = (len(layers), architecture.moe_router_topk)
    column = Column("experts", dtype, shape, fill=fill)
    return Routes(column, architecture.num_layers, layers, architecture.num_moe_experts)
