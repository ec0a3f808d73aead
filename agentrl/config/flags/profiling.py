"""Where the learner's time and memory go: traces of torch's profiler, snapshots of GPU memory."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from agentrl.config.facts import FREE, TRAINS, Count, Natural, flag
from agentrl.config.flags.debugging import DebuggingFlags

__all__ = ["ProfileTarget", "ProfilingFlags"]

ProfileTarget = Literal["train_overall", "train_actor", "train_log_probs"]

_flag = partial(flag, group="profiling", on_resume=FREE, modes=TRAINS, reaches_weights=False)


class ProfilingFlags(DebuggingFlags, frozen=True, kw_only=True):
    use_pytorch_profiler: Annotated[
        bool,
        _flag(
            "Record some iterations of every learner rank with torch's profiler, and write a trace "
            "that Perfetto and TensorBoard open",
            needs="learner",
        ),
    ] = False
    profile_target: Annotated[
        list[ProfileTarget],
        _flag(
            "What is recorded: train_overall (the learner's whole iterations, waits and weight "
            "pushes too), train_actor (optimizer steps), train_log_probs (forward passes before "
            "them); without train_overall each part has a trace of its own",
            needs="profiled",
            min_length=1,
        ),
    ] = msgspec.field(default_factory=lambda: ["train_overall"])
    profile_step_start: Annotated[
        Natural,
        _flag("Iterations of a learner's process before the first recorded one", needs="profiler"),
    ] = 10
    profile_step_end: Annotated[
        Count,
        _flag("Iterations of a learner's process up to the last recorded one", needs="profiler"),
    ] = 12
    tensorboard_dir: Annotated[
        str | None,
        _flag(
            "Folder of the traces (default: runs/ID/profile); metrics stay in runs/ID/tensorboard",
            needs="profiler",
            holds="folder",
        ),
    ] = None
    record_memory_history: Annotated[
        bool,
        _flag(
            "Keep the last million allocations of each GPU of the learner, with their stacks, and "
            "write a snapshot of them when memory runs out and after the last of "
            "--memory-snapshot-num-steps",
            needs="learner",
        ),
    ] = False
    memory_snapshot_dir: Annotated[
        str | None,
        _flag(
            "Folder of the snapshots (default: runs/ID/profile)",
            needs="memory_history",
            holds="folder",
        ),
    ] = None
    memory_snapshot_num_steps: Annotated[
        Count | None,
        _flag(
            "Iterations of a learner's process to keep allocations for (default: all of them, with "
            "a snapshot at the end)",
            needs="memory_history",
        ),
    ] = None
