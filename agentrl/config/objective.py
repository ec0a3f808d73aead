"""Rules between the flags of the loss: combinations that would train something else are refused."""

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["check_objective"]

#: Fields that only acting, scoring or a policy's loss reads.
_NOT_SUPERVISED = (
    "env",
    "env_args",
    "eval_prompt_data",
    "eval_interval",
    "eval_mode",
    "eval_only",
    "skip_eval_before_train",
    "dynamic_sampling_filter_path",
    "over_sampling_batch_size",
    "allow_unsafe_sandbox",
    "staleness_policy",
    "partial_rollout",
    "mask_offpolicy_in_partial_rollout",
    "advantage_estimator",
    "algorithm_args",
    "disable_grpo_std_normalization",
    "disable_rewards_normalization",
    "eps_clip",
    "eps_clip_high",
    "eps_clip_c",
    "use_tis",
    "tis_clip",
    "tis_clip_low",
    "entropy_coef",
    "use_kl_loss",
    "check_weight_update_equal",
)


def check_objective(config: RunConfig) -> None:
    """Raise ConfigError for loss flags that contradict each other, with the numbers."""
    if config.kl_loss_coef > 0 and not config.use_kl_loss:
        raise ConfigError(
            f"--kl-loss-coef {config.kl_loss_coef:g} has no effect without --use-kl-loss; give "
            "both or neither"
        )
    if config.tis_clip_low > config.tis_clip:
        raise ConfigError(
            f"--tis-clip-low {config.tis_clip_low:g} is above --tis-clip {config.tis_clip:g}; "
            "no weight lies between them"
        )
    if config.eps_clip > 1:
        raise ConfigError(
            f"--eps-clip {config.eps_clip:g}: a ratio cannot fall below 0; use 1 or less"
        )
    if config.min_lr > config.lr:
        raise ConfigError(
            f"--min-lr {config.min_lr:g} is above --lr {config.lr:g}; a decay would rise"
        )
    if (config.custom_loss_function_path is not None) != (config.loss_type == "custom_loss"):
        raise ConfigError(
            "--loss-type custom_loss and --custom-loss-function-path belong together; give both or "
            "neither"
        )
    if config.is_supervised:
        _check_supervised(config)
    elif config.prompt_loss_weight > 0:
        raise ConfigError(
            f"--prompt-loss-weight {config.prompt_loss_weight:g} is for --loss-type sft_loss; a "
            "policy is trained on nothing but what it sampled"
        )


def _check_supervised(config: RunConfig) -> None:
    if config.prompt_data is None:
        raise ConfigError(
            "--loss-type sft_loss needs --prompt-data: a JSONL file whose rows hold a dialogue "
            f"under {config.input_key!r} (--input-key)"
        )
    if config.n_samples_per_prompt != 1:
        raise ConfigError(
            f"--n-samples-per-prompt {config.n_samples_per_prompt} with --loss-type sft_loss: a "
            "demonstration is one dialogue; leave it at 1"
        )
    default = RunConfig()
    given = [name for name in _NOT_SUPERVISED if getattr(config, name) != getattr(default, name)]
    given += [f"{family}-*" for family in ("sglang", "router") if getattr(config, family)]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ConfigError(
            f"{flags}: --loss-type sft_loss imitates dialogues, without engines, environment or "
            "rewards; leave this out"
        )
