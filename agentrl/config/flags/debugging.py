"""One half of a run alone: what a learner is given, saved to files and trained from files.

A saved iteration is a file (`agentrl/rollout_file.py`), so that a fault can be looked for in the
learner without engines, and in engines and environments without a learner.
"""

from functools import partial
from typing import Annotated

from agentrl.config.facts import FREE, POLICY, TASKS, TRAINS, fixed, flag
from agentrl.config.flags.tracking import TrackingFlags

__all__ = ["DebuggingFlags"]

_flag = partial(flag, group="debugging", on_resume=FREE, reaches_weights=False)


class DebuggingFlags(TrackingFlags, frozen=True, kw_only=True):
    save_debug_rollout_data: Annotated[
        str | None,
        _flag(
            "File for the groups of each iteration, written before it is trained; {rollout_id} in "
            "it is the number of the iteration, from 1",
            modes=TRAINS,
            holds="folder",
        ),
    ] = None
    save_debug_train_data: Annotated[
        str | None,
        _flag(
            "File of NumPy (.npz) for what each iteration trains on, written when advantages and "
            "masks are made and before the first step; {rollout_id} in it is the number of the "
            "iteration, from 1, and {rank} the data-parallel rank",
            modes=TRAINS,
            needs="learner",
            holds="folder",
        ),
    ] = None
    dump_details: Annotated[
        str | None,
        _flag(
            "Folder for all that a run can save to look for a fault: "
            "rollout_data/{rollout_id}.rollouts as --save-debug-rollout-data, and "
            "train_data/{rollout_id}_{rank}.npz as --save-debug-train-data",
            modes=TRAINS,
            holds="folder",
        ),
    ] = None
    load_debug_rollout_data: Annotated[
        str | None,
        _flag(
            "Train on files of --save-debug-rollout-data and start no engines or workers; without "
            "{rollout_id} each iteration trains on the same file",
            modes=TRAINS,
            on_resume=TASKS,
            holds="folder",
        ),
    ] = None
    debug_rollout_only: Annotated[
        bool,
        _flag(
            "Play episodes and make batches of them with the weights of --hf-checkpoint, and train "
            "nothing: a process without a model takes the place of the learner",
            modes=POLICY,
            on_resume=fixed("its ledger says of each group whether it was trained"),
        ),
    ] = False
