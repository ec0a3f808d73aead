"""Which run it is: its place, its length, its device, and the seed of the learner.

The directory that is continued decides which run it is.
"""

from functools import partial
from typing import Annotated, Literal

import msgspec

from agentrl.config.facts import (
    ENGINES,
    FREE,
    GROUPS,
    LEARNER,
    POLICY,
    STATE,
    TASKS,
    TRAINS,
    Count,
    flag,
)

__all__ = ["RunFlags"]

_flag = partial(flag, group="run", on_resume=FREE)


class RunFlags(msgspec.Struct, frozen=True, kw_only=True):
    preset: Annotated[
        str | None,
        _flag("Start from this preset; its values lie under your flags", on_resume=GROUPS),
    ] = None
    run_dir: Annotated[
        str, _flag("Folder that holds the run directories", needs="new_run", reaches_weights=False)
    ] = "runs"
    run_id: Annotated[
        str | None,
        _flag(
            "Name of this run, [A-Za-z0-9._-]{1,80} (default: time and a short random id)",
            needs="new_run",
        ),
    ] = None
    resume: Annotated[
        str,
        _flag(
            "Run to continue: its directory, auto (the newest neither complete nor failed), or "
            "never (begin a new run)",
            reaches_weights=False,
        ),
    ] = "never"
    num_rollout: Annotated[
        Count | None, _flag("Iterations to train (default: until the tasks end)", modes=TRAINS)
    ] = None
    num_epoch: Annotated[
        Count | None,
        _flag(
            "Times to go through the rows, without --num-rollout",
            modes=TRAINS,
            on_resume=TASKS,
            needs="rows",
            halves=ENGINES,
        ),
    ] = None
    max_total_sampled_tokens: Annotated[
        Count | None,
        _flag(
            "Tokens that training may sample in the whole run, continuations included; once they "
            "are sampled no further group begins, and the run ends when those that have begun are "
            "trained (default: no bound)",
            modes=POLICY,
            halves=ENGINES,
        ),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _flag(
            "Where the model runs: auto takes GPUs that are there if torch and SGLang can use "
            "them; cpu hides them from the run"
        ),
    ] = "auto"
    seed: Annotated[
        int,
        _flag(
            "Seed of the learner and of everything that has no seed of its own",
            modes=TRAINS,
            on_resume=STATE,
            ge=0,
            halves=LEARNER,
        ),
    ] = 1234
