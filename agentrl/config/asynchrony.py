"""Rules between the flags of asynchrony: B, I, S, N, and what may be in the making at once.

Every combination that is accepted makes progress: while the learner waits, a whole batch may be
played, by weights young enough to be trained. Letters as in docs/async.md.
"""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_asynchrony", "notes_on_asynchrony"]


def about_asynchrony(config: RunConfig) -> Iterator[str]:
    """What could train nothing, or would have to break a bound."""
    staleness, interval = config.staleness_bound, config.update_weights_interval
    if staleness < interval - 1:
        yield (
            f"--max-staleness {staleness} with --update-weights-interval {interval}: just before a "
            f"push the newest weights are {interval - 1} iterations old, so nothing could be "
            f"trained; raise --max-staleness to {interval - 1} or lower --update-weights-interval "
            f"to {staleness + 1}"
        )
    elif config.over_sampling_batch_size is not None:
        yield from _about_over_sampling(config, config.over_sampling_batch_size)


def _about_over_sampling(config: RunConfig, wanted: int) -> Iterator[str]:
    batch = config.rollout_batch_size
    if wanted < batch:
        yield (
            f"--over-sampling-batch-size {wanted} is less than --rollout-batch-size {batch}: the "
            f"next iteration could never be filled; make it {batch} or more"
        )
    ahead, interval = config.async_buffer_size, config.update_weights_interval
    staleness = config.staleness_bound
    most = min(ahead + 1, staleness - interval + 2) * batch
    if wanted > most:
        needed = -(-wanted // batch) - 1
        yield (
            f"--over-sampling-batch-size {wanted} with --rollout-batch-size {batch}, "
            f"--async-buffer-size {ahead}, --update-weights-interval {interval} and "
            f"--max-staleness {staleness}: at most min(B + 1, S - I + 2) x N = {most} groups can "
            "be in the making and still be young enough when their iteration comes; raise "
            f"--async-buffer-size to {needed} and --max-staleness to {needed + interval - 1}, or "
            f"make it {most}"
        )


def notes_on_asynchrony(config: RunConfig) -> list[str]:
    """What will run but deserves a look."""
    notes = []
    if config.num_ahead < config.async_buffer_size:
        notes.append(
            f"--max-staleness {config.staleness_bound} lets generation run {config.num_ahead} "
            f"iterations ahead, not --async-buffer-size {config.async_buffer_size}"
        )
    if config.mask_offpolicy_in_partial_rollout and not config.partial_rollout:
        notes.append(
            "--mask-offpolicy-in-partial-rollout adds nothing to --no-partial-rollout: turns have "
            "one version, and of those that were given up too often the newest alone is trained"
        )
    if config.over_sampling_batch_size is not None and config.dynamic_sampling_filter_path is None:
        notes.append(
            f"--over-sampling-batch-size {config.over_sampling_batch_size} without "
            "--dynamic-sampling-filter-path: no group is filtered, so more than "
            f"{config.rollout_batch_size} in the making only make older groups"
        )
    return notes
