"""The course of the learning rate, in optimizer steps of the run, and what Megatron's rule for it
cannot do (`agentrl.learner.megatron.schedule` applies the rule)."""

from collections.abc import Iterator, Sized

import msgspec

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = [
    "about_critics_rate",
    "about_rates",
    "decay_steps",
    "policys_steps",
    "warmup_steps",
    "with_critics_rate",
    "with_end",
]


def decay_steps(config: RunConfig, total_steps: int | None) -> int | None:
    """Steps from the first one to the end of the decay; None where there is no end."""
    return config.lr_decay_iters or total_steps


def warmup_steps(config: RunConfig, total_steps: int | None) -> float:
    """Steps of the warm-up. A fraction is of all steps to the end of the decay, as in Megatron."""
    if config.lr_warmup_fraction is None:
        return config.lr_warmup_iters
    return config.lr_warmup_fraction * (decay_steps(config, total_steps) or 0)


def policys_steps(config: RunConfig, total_steps: int | None) -> int | None:
    """Steps that the policy takes where so many are in the run."""
    return None if total_steps is None else max(0, total_steps - _critics_alone(config))


def _critics_alone(config: RunConfig) -> int:
    """Steps of the critic before the policy's first one."""
    return config.num_critic_only_steps * config.num_steps_per_rollout


def with_critics_rate(config: RunConfig) -> RunConfig:
    """`config`, whose learning rate is the critic's. Its decay ends with the policy's, whose steps
    --lr-decay-iters counts, and it has taken more steps by then."""
    end = config.lr_decay_iters
    return msgspec.structs.replace(
        config,
        lr=config.lr if config.critic_lr is None else config.critic_lr,
        lr_warmup_iters=config.critic_lr_warmup_iters,
        lr_decay_iters=None if end is None else end + _critics_alone(config),
    )


def with_end(config: RunConfig, tasks: object) -> RunConfig:
    """`config` with the steps that its `tasks` are enough for, where the rate needs an end and no
    flag gives one."""
    if not _wants_end(config) or config.num_rollout or config.lr_decay_iters:
        return config
    if not isinstance(tasks, Sized):
        raise ConfigError(_no_end(config))
    iterations = max(1, len(tasks) * (config.num_epoch or 1) // config.rollout_batch_size)
    steps = policys_steps(config, iterations * config.num_steps_per_rollout) or 1
    return msgspec.structs.replace(config, lr_decay_iters=steps)


def about_rates(config: RunConfig) -> Iterator[str]:
    """What contradicts itself in the flags of the learning rate, with the numbers."""
    if config.min_lr > config.lr:
        yield f"--min-lr {config.min_lr:g} is above --lr {config.lr:g}; a decay would rise"
    if config.lr_warmup_init > config.lr:
        yield (
            f"--lr-warmup-init {config.lr_warmup_init:g} is above --lr {config.lr:g}; a warm-up "
            "would fall"
        )
    if config.lr_warmup_fraction is not None and config.lr_warmup_iters:
        yield (
            f"--lr-warmup-fraction {config.lr_warmup_fraction:g} and --lr-warmup-iters "
            f"{config.lr_warmup_iters} both say how long the warm-up is; give one"
        )
    if config.has_critic:
        yield from about_critics_rate(config)
    total = config.num_rollout and config.num_rollout * config.num_steps_per_rollout
    total = policys_steps(config, total)
    end, warmup = decay_steps(config, total), warmup_steps(config, total)
    if total == 0:
        return  # the critic alone is trained
    if end is not None:
        yield from _about_end(config, end, warmup)
    elif _wants_end(config) and config.prompt_data is None:  # rows can be counted
        yield _no_end(config)


def about_critics_rate(config: RunConfig) -> Iterator[str]:
    """What the critic shares with the policy is all but the rate itself and its warm-up."""
    rate, warmup = config.critic_lr, config.critic_lr_warmup_iters
    if rate is not None and config.min_lr > rate:
        yield f"--min-lr {config.min_lr:g} is above --critic-lr {rate:g}; a decay would rise"
    if rate is not None and config.lr_warmup_init > rate:
        yield (
            f"--lr-warmup-init {config.lr_warmup_init:g} is above --critic-lr {rate:g}; a warm-up "
            "would fall"
        )
    if config.lr_warmup_fraction is not None and warmup:
        yield (
            f"--lr-warmup-fraction {config.lr_warmup_fraction:g} is the critic's warm-up too, and "
            f"--critic-lr-warmup-iters {warmup} says another one; give one"
        )
    total = config.num_rollout and config.num_rollout * config.num_steps_per_rollout
    end = decay_steps(with_critics_rate(config), total)
    if config.lr_decay_style != "constant" and end is not None and warmup >= end:
        yield (
            f"--critic-lr-warmup-iters {warmup} leaves no steps to --lr-decay-style "
            f"{config.lr_decay_style}, which ends at {end} (--lr-decay-iters, or --num-rollout x "
            "--num-steps-per-rollout); lower it"
        )


def _wants_end(config: RunConfig) -> bool:
    return config.lr_decay_style != "constant" or config.lr_warmup_fraction is not None


def _no_end(config: RunConfig) -> str:
    is_constant = config.lr_decay_style == "constant"
    asking = "--lr-warmup-fraction" if is_constant else f"--lr-decay-style {config.lr_decay_style}"
    ends = "--num-rollout" if is_constant else "--num-rollout, or --lr-decay-iters"
    return f"{asking} needs to know how many steps there are: give {ends}"


def _about_end(config: RunConfig, end: int, warmup: float) -> Iterator[str]:
    style = config.lr_decay_style
    if style == "constant":
        return
    if warmup >= end:
        yield (
            f"--lr-decay-style {style} has no steps: it ends at {end} (--lr-decay-iters, or "
            "--num-rollout x --num-steps-per-rollout) and the warm-up takes "
            f"{warmup:g} (--lr-warmup-iters, --lr-warmup-fraction); lower the warm-up"
        )
    if style == "inverse-square-root" and not warmup:
        yield (
            "--lr-decay-style inverse-square-root falls from the end of a warm-up, by the root of "
            "the steps since the first one; give --lr-warmup-iters or --lr-warmup-fraction"
        )
    if style != "WSD":
        return
    if config.lr_wsd_decay_iters is None:
        yield "--lr-decay-style WSD needs --lr-wsd-decay-iters: the steps of its last part"
    elif warmup + config.lr_wsd_decay_iters > end:
        yield (
            f"--lr-wsd-decay-iters {config.lr_wsd_decay_iters} and a warm-up of {warmup:g} steps "
            f"are more than the {end} steps of the whole; lower one of them"
        )
