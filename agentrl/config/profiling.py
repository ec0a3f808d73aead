"""Rules between the flags of profilers: a run that would record nothing is refused."""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_profiling"]


def about_profiling(config: RunConfig) -> Iterator[str]:
    """What could not be recorded."""
    first, last = config.profile_step_start, config.profile_step_end
    if config.use_pytorch_profiler and last <= first:
        yield (
            f"--profile-step-end {last} is not above --profile-step-start {first}, and nothing "
            f"would be recorded; make it {first + 1} or more"
        )
    elif config.use_pytorch_profiler and (config.num_rollout or last) <= first:
        yield (
            f"--profile-step-start {first}: the run ends with iteration {config.num_rollout} "
            "(--num-rollout) and nothing would be recorded; lower it (0: from the first on)"
        )
    if config.record_memory_history and "train_overall" not in config.profile_target:
        yield (
            "--record-memory-history is about whole iterations, and --profile-target "
            f"{' '.join(config.profile_target)} leaves them out; add train_overall"
        )
