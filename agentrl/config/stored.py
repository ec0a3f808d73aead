"""What a run may not change when it is continued: that on which its stored rows rest.

A field is fixed where something stored was made under its old value and would be read as if made
under the new one: a group whose episodes are compared with each other, a log-probability that the
learner scores again, a position in the tasks, the state of a checkpoint. All else is free and
applies from the continuation on. Every field of `RunConfig` is one or the other; a test says so.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["FIXED", "FREE", "refuse_changes"]

_TASKS = "its ledger counts the tasks of that"
_GROUPS = "its ledger holds groups of that"
_PLAYED = "its ledger holds episodes that were played under that"
_STATE = "its checkpoints go on from that"

#: Fields that stay, and what contradicts a change. `min_group_size` may fall, but not rise.
FIXED = {
    "env": _GROUPS,
    "env_args": _GROUPS,
    "eval_only": _GROUPS,
    "min_group_size": "its ledger holds groups that are ready with so many",
    "n_samples_per_prompt": _GROUPS,
    "preset": _GROUPS,
    "rollout_batch_size": _GROUPS,
    "input_key": _TASKS,
    "label_key": _TASKS,
    "num_epoch": _TASKS,
    "prompt_data": _TASKS,
    "rollout_seed": _TASKS,
    "rollout_shuffle": _TASKS,
    "chat_format": _PLAYED,
    "custom_rm_path": _PLAYED,
    "max_tool_calls": _PLAYED,
    "max_turns": _PLAYED,
    "rollout_max_context_len": _PLAYED,
    "rollout_max_prompt_len": _PLAYED,
    "rollout_max_response_len": _PLAYED,
    "rollout_stop_token_ids": _PLAYED,
    "rollout_temperature": _PLAYED,
    "rollout_top_k": _PLAYED,
    "rollout_top_p": _PLAYED,
    "hf_checkpoint": _STATE,
    "load": _STATE,
    "loss_type": _STATE,
    "save": _STATE,
    "seed": _STATE,
}

#: Fields that may change, and why no row contradicts it.
FREE = {
    "the directory that is continued decides which run it is": ("run_dir", "run_id", "resume"),
    "a token carries its version, and an iteration its number": (
        *("num_rollout", "async_buffer_size", "update_weights_interval", "max_staleness"),
        *("staleness_policy", "partial_rollout", "mask_offpolicy_in_partial_rollout"),
    ),
    "a filter judges a whole group, once": (
        *("dynamic_sampling_filter_path", "over_sampling_batch_size"),
    ),
    "it bounds what is kept from now on": (
        *("buffer_disk_limit", "keep_trajectories", "save_interval", "save_hf"),
    ),
    "deadlines and rights are the host's": (
        *("turn_timeout_s", "tool_timeout_s", "episode_timeout_s", "start_timeout_s"),
        *("allow_unsafe_sandbox", "num_agent_workers", "max_concurrent_episodes"),
    ),
    "rates and losses are the configuration's, not a checkpoint's": (
        *("num_steps_per_rollout", "max_tokens_per_gpu", "custom_loss_function_path"),
        *(
            "prompt_loss_weight",
            "advantage_estimator",
            "algorithm_args",
            "disable_grpo_std_normalization",
        ),
        *("disable_rewards_normalization", "calculate_per_token_loss", "eps_clip"),
        *("eps_clip_high", "eps_clip_c", "use_tis", "tis_clip", "tis_clip_low", "entropy_coef"),
        *("use_kl_loss", "kl_loss_coef", "kl_loss_type", "lr", "min_lr", "lr_decay_style"),
        *("lr_warmup_iters", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
    ),
    "a checkpoint is shared out anew, and its weights are pushed anew": (
        *(
            "device",
            "ray_address",
            "actor_num_nodes",
            "actor_num_gpus_per_node",
            "rollout_num_gpus",
        ),
        *("rollout_num_gpus_per_engine", "sglang_server_concurrency"),
        *("update_weight_buffer_size", "update_weights_timeout", "update_weights_fleet_size"),
        *("check_weight_update_equal", "megatron", "sglang", "router"),
    ),
    "nothing is trained on an evaluation": (
        *("eval_prompt_data", "eval_interval", "eval_mode", "n_samples_per_eval_prompt"),
        *("eval_temperature", "skip_eval_before_train"),
    ),
}


def refuse_changes(before: RunConfig, now: RunConfig, run: Path) -> None:
    """Raise ConfigError when `now` contradicts what the run in `run` has stored under `before`; all
    contradictions are named at once."""
    changes = list(_changes(before, now, run))
    if not changes:
        return
    raise ConfigError(
        "\n".join(changes) + f" leave {'them' if changes[1:] else 'it'} out, or start a new run "
        "(--load takes the weights along)"
    )


def _changes(before: RunConfig, now: RunConfig, run: Path) -> Iterator[str]:
    for name, why in FIXED.items():
        default = {"save": str(run / "recovery"), "min_group_size": before.n_samples_per_prompt}
        old, new = (_value(config, name, default.get(name)) for config in (before, now))
        if old == new or (name == "min_group_size" and new < old):
            continue
        flag = "--" + name.replace("_", "-")
        begun = "without it" if old is None else f"with {old}"
        yield f"{flag} {_said(new)}, but {run} was begun {begun} and {why};"


def _value(config: RunConfig, name: str, default: Any) -> Any:
    value = getattr(config, name)
    return default if value is None else value


def _said(value: Any) -> str:
    return "is not given" if value is None else str(value)
