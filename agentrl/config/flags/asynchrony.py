"""How far generation runs ahead, and what is kept.

A token carries its version and an iteration its number, so a continued run may change all of it.
"""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import ENGINES, FREE, LEARNER, POLICY, TRAINS, Natural, flag
from agentrl.config.flags.rollout import RolloutFlags

__all__ = ["AsynchronyFlags", "StalenessPolicy"]

StalenessPolicy = Literal["mask", "drop"]

_flag = partial(flag, group="async", on_resume=FREE, modes=TRAINS)


class AsynchronyFlags(RolloutFlags, frozen=True, kw_only=True):
    async_buffer_size: Annotated[
        int, _flag("B: iterations that generation may run ahead", synchronous=0, ge=0)
    ] = 2
    update_weights_interval: Annotated[
        int, _flag("I: iterations between weight pushes", synchronous=1, ge=1)
    ] = 1
    max_staleness: Annotated[
        Natural | None,
        _flag(
            "S: greatest age of a trained token in iterations (default: B + I - 1)", synchronous=0
        ),
    ] = None
    staleness_policy: Annotated[
        StalenessPolicy,
        _flag(
            "What happens to a token older than S: mask leaves it out of the loss; drop gives up "
            "its whole group before it is leased, and mints the task again, at most twice",
            modes=POLICY,
            halves=ENGINES,
            needs="ahead",
        ),
    ] = "mask"
    partial_rollout: Annotated[
        bool,
        _flag(
            "Let a turn go on through weight pushes; without this, it is sampled again from its "
            "prompt, at most twice, so that it has one version. Where S is 0, a task that is "
            "unfinished when its iteration is full begins anew in the next one; without this, it "
            "is given up",
            modes=POLICY,
            needs="cut_short",
        ),
    ] = True
    mask_offpolicy_in_partial_rollout: Annotated[
        bool,
        _flag(
            "Train only the tokens of a turn that its newest weights sampled",
            modes=POLICY,
            needs="pushed_turns",
            halves=LEARNER,
        ),
    ] = False
    buffer_disk_limit: Annotated[
        int,
        _flag(
            "Bytes of stored trajectories; minting stops while full",
            ge=1,
            halves=ENGINES,
            reaches_weights=False,
        ),
    ] = 64 * 1024**3
    keep_trajectories: Annotated[
        int,
        _flag(
            "Bytes of trajectories kept for reading after they are trained; the oldest go first; "
            "0 keeps none",
            ge=0,
            reaches_weights=False,
        ),
    ] = 256 * 1024**2
