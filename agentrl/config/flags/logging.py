"""What is logged of episodes when somebody asks: pass rates, and what functions of the user's log.

When these are called, and what becomes of what they log, is told by `agentrl.envs.slime_logs`.
"""

from functools import partial
from typing import Annotated

from agentrl.config.facts import ACTS, ENGINES, FREE, POLICY, TRAINS, flag
from agentrl.config.flags.hooks import HookFlags

__all__ = ["LoggingFlags"]

_PLACE = "a name, pkg.module:fn or path/to/file.py[:fn]"
_flag = partial(flag, group="tracking", on_resume=FREE, holds="code", reaches_weights=False)


class LoggingFlags(HookFlags, frozen=True, kw_only=True):
    log_passrate: Annotated[
        bool,
        flag(
            "Log rollout/pass@k of training groups, for the powers of two k that every group of "
            "the iteration has episodes for (evaluations have eval/SET/pass@k in any case)",
            group="tracking",
            on_resume=FREE,
            modes=POLICY,
            reaches_weights=False,
        ),
    ] = False
    custom_rollout_log_function_path: Annotated[
        str | None,
        _flag(
            "Function that logs figures of each iteration, called as fn(rollout_id, args, "
            "samples, rollout_extra_metrics, rollout_time); where it returns True, trackers get "
            f"these in place of rollout/*: {_PLACE}",
            modes=TRAINS,
        ),
    ] = None
    custom_eval_rollout_log_function_path: Annotated[
        str | None,
        _flag(
            "Function that logs figures of each evaluation, called as fn(rollout_id, args, data, "
            "extra_metrics); where it returns True, trackers get these in place of eval/*: "
            f"{_PLACE}",
            modes=ACTS,
            needs="evaluation_sets",
            halves=ENGINES,
        ),
    ] = None
    rollout_all_samples_process_path: Annotated[
        str | None,
        _flag(
            "Function that sees the samples of each iteration, those of groups that "
            "--dynamic-sampling-filter-path drops too, and changes none; called as fn(args, "
            f"all_samples, data_source), with a list of samples for each group: {_PLACE}",
            modes=POLICY,
            needs="own_samples",
            halves=ENGINES,
        ),
    ] = None
