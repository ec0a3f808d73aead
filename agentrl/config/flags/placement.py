"""Hosts and devices. A checkpoint is shared out anew, so a continued run may change all of it."""

from functools import partial
from typing import Annotated

from agentrl.config.facts import ACTS, FREE, Count, flag
from agentrl.config.flags.optimizer import OptimizerFlags

__all__ = ["PlacementFlags"]

_flag = partial(flag, group="placement", on_resume=FREE)


class PlacementFlags(OptimizerFlags, frozen=True, kw_only=True):
    """Hosts and devices."""

    ray_address: Annotated[
        str | None, _flag("address of a running Ray cluster (default: start one here)")
    ] = None
    actor_num_nodes: Annotated[int, _flag("nodes of the learner", ge=1)] = 1
    actor_num_gpus_per_node: Annotated[
        int, _flag("learner ranks on a node (1 on a host without GPU)", ge=1)
    ] = 8
    rollout_num_gpus: Annotated[
        Count | None,
        _flag("devices of all engines (default: as many as one engine needs)", modes=ACTS),
    ] = None
    rollout_num_gpus_per_engine: Annotated[
        int, _flag("devices of one engine", modes=ACTS, ge=1)
    ] = 1
    start_timeout_s: Annotated[
        float, _flag("deadline of the engines' start, and of the first push after it", gt=0)
    ] = 600.0
