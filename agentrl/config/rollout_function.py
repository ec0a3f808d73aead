"""The rules about `--rollout-function-path`: what a run with such a function has, and has not."""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_rollout_function", "notes_on_rollout_function"]

_FLAG = "--rollout-function-path"


def about_rollout_function(config: RunConfig) -> Iterator[str]:
    """What contradicts itself. A call of the function is given whole groups, which only a worker
    that has all episodes of the run can give."""
    if config.rollout_function_path is None:
        return
    if config.custom_generate_function_path is not None:
        yield (
            f"{_FLAG} and --custom-generate-function-path: the rollout function plays the "
            "episodes; call the other one in it, and leave out the flag"
        )
    if config.env_mix:
        yield f"{_FLAG} and --env-mix: one function plays all tasks; leave one of the two out"
    if config.num_agent_workers != 1:
        yield (
            f"{_FLAG} with --num-agent-workers {config.num_agent_workers}: a call of the function "
            "is given whole groups, and several workers share the episodes of a group; give 1"
        )
    groups = max(config.rollout_batch_size, config.over_sampling_batch_size or 0)
    needed = groups * config.n_samples_per_prompt
    if config.max_concurrent_episodes < needed:
        yield (
            f"{_FLAG} with --max-concurrent-episodes {config.max_concurrent_episodes}: a call of "
            f"the function has {groups} groups of {config.n_samples_per_prompt} episodes at once; "
            f"give {needed} or more"
        )


def notes_on_rollout_function(config: RunConfig) -> Iterator[str]:
    """What slime would have the function do, and this run does not."""
    is_evaluated = config.names_eval_sets and config.eval_function_path is None
    if config.rollout_function_path is not None and is_evaluated:
        yield (
            f"{_FLAG} is not called for evaluation sets: they are played without it; "
            "--eval-function-path names the function that plays them, which may be the same"
        )
