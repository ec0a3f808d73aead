"""Engines: how many turns they take, and how weights are pushed to them."""

from functools import partial
from typing import Annotated

from agentrl.config.facts import ACTS, FREE, flag
from agentrl.config.flags.placement import PlacementFlags

__all__ = ["ServingFlags"]

_flag = partial(flag, group="serving", on_resume=FREE, modes=ACTS)


class ServingFlags(PlacementFlags, frozen=True, kw_only=True):
    """Engines: how many turns they take, and how weights are pushed to them."""

    sglang_server_concurrency: Annotated[int, _flag("turns in flight on one engine", ge=1)] = 512
    update_weight_buffer_size: Annotated[int, _flag("bytes of a weight bucket", ge=1)] = (
        512 * 1024**2
    )
    update_weights_timeout: Annotated[
        float, _flag("deadline in seconds of each call of a weight push", gt=0)
    ] = 300.0
    update_weights_fleet_size: Annotated[int, _flag("engines in one collective", ge=1)] = 16
    check_weight_update_equal: Annotated[
        bool,
        _flag(
            "after each push compare every engine's weights with the learner's (engines of one "
            "rank, on the CPU)"
        ),
    ] = False
