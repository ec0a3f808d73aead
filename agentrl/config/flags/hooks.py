"""Functions of the user's that the ranks of the learner call, in slime's signatures.

What they are given, and what is read of it afterwards, is told by `agentrl.learner.hooks`.
"""

from functools import partial
from typing import Annotated, Any

from agentrl.config.facts import ACTS, BOTH, FREE, LEARNER, POLICY, TRAINS, flag
from agentrl.config.flags.profiling import ProfilingFlags

__all__ = ["HookFlags"]

_PLACE = "a name, pkg.module:fn or path/to/file.py[:fn]"
_flag = partial(flag, group="learner hooks", on_resume=FREE, holds="code")


class HookFlags(ProfilingFlags, frozen=True, kw_only=True):
    custom_config_path: Annotated[
        dict[str, Any],
        flag(
            "File of names and values (YAML or TOML) that functions in slime's signatures find in "
            "their args beside the flags",
            group="learner hooks",
            on_resume=FREE,
            holds="names",
        ),
    ] = {}
    hook_timeout_s: Annotated[
        float,
        flag(
            "Deadline of one call of your code in the learner (hooks, losses, advantages, methods "
            "of an estimator), or of a class of --data-source-path; then it is told where it "
            "stands and the run ends, and can be continued. "
            "Keep it below --distributed-timeout-minutes: ranks that wait must not end first",
            group="learner hooks",
            on_resume=FREE,
            modes=TRAINS,
            gt=0,
            reaches_weights=False,
        ),
    ] = 480.0
    custom_megatron_init_path: Annotated[
        str | None,
        _flag(
            "Function that is called once, when Megatron's process groups are there and no model "
            f"is built yet, as fn(args): {_PLACE}",
            modes=TRAINS,
            halves=LEARNER,
        ),
    ] = None
    custom_megatron_before_log_prob_hook_path: Annotated[
        str | None,
        _flag(
            "Function that is called before each forward pass for log-probabilities, as "
            "fn(args, model, store_prefix): the parts of the model that this rank holds, and '', "
            f"'ref_' or 'teacher_': {_PLACE}",
            modes=POLICY,
            halves=LEARNER,
        ),
    ] = None
    custom_megatron_before_train_step_hook_path: Annotated[
        str | None,
        _flag(
            "Function that is called before the passes of each optimizer step, as fn(args, "
            "rollout_id, step_id, model, optimizer, opt_param_scheduler), with what Megatron-core "
            f"has: {_PLACE}",
            modes=TRAINS,
            halves=LEARNER,
        ),
    ] = None
    rollout_data_postprocess_path: Annotated[
        str | None,
        _flag(
            "Function that may change advantages, and take tokens out of loss masks, before an "
            f"iteration is trained, called as fn(args, rollout_id, rollout_data): {_PLACE}",
            modes=POLICY,
            halves=LEARNER,
        ),
    ] = None
    rollout_sample_filter_path: Annotated[
        str | None,
        _flag(
            "Function that sets sample.remove_sample of episodes that are not trained; their "
            "rewards stay in the statistics of their group; called as fn(args, groups), with a "
            f"list of samples for each group: {_PLACE}",
            modes=POLICY,
            halves=LEARNER,
        ),
    ] = None
    custom_convert_samples_to_train_data_path: Annotated[
        str | None,
        _flag(
            "Function that makes the samples of an iteration into what its episodes earned, which "
            "of them are trained, and loss masks, which tokens can be taken out of, called as "
            f"fn(args, samples) -> a dict with a list for each key: {_PLACE}",
            modes=POLICY,
            needs="one_reward_function",
            halves=LEARNER,
        ),
    ] = None
    custom_update_weight_post_write_path: Annotated[
        str | None,
        _flag(
            "Function that is called when the files of a push are written and before engines read "
            "them, for disks that do not show them to other hosts by themselves, as fn(args, "
            f"version_dir, rollout_engines), with the URLs of the engines: {_PLACE}",
            modes=ACTS,
            needs="disk_pushes",
            halves=BOTH,
        ),
    ] = None
