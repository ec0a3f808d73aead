"""Rules between the flags of asynchrony: B, I, S, N, and what may be in the making at once.

Every combination that is accepted makes progress: while the learner waits, a whole batch may be
played, by weights young enough to be trained. Letters as in docs/async.md.
"""

from collections.abc import Iterator

from agentrl.config.run import RunConfig
from agentrl.shipped import FILTERS

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
    if config.colocate and (config.num_ahead or interval > 1):
        yield (
            f"--colocate with --async-buffer-size {config.async_buffer_size} and "
            f"--update-weights-interval {interval}: learner and engines take turns on the same "
            "devices, so nothing can be generated while the learner trains; use train.py, or "
            "--async-buffer-size 0 and --update-weights-interval 1, or give engines devices of "
            "their own (leave --colocate out)"
        )


def _about_over_sampling(config: RunConfig, wanted: int) -> Iterator[str]:
    batch = config.rollout_batch_size
    if wanted < batch:
        yield (
            f"--over-sampling-batch-size {wanted} is less than --rollout-batch-size {batch}: the "
            f"next iteration could never be filled; make it {batch} or more"
        )
    if config.gives_up_surplus:
        return
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
    theirs = config.dynamic_sampling_filter_path or ""
    if ours := FILTERS.theirs.get(theirs):
        notes.append(
            f"--dynamic-sampling-filter-path {theirs}: agentrl's {ours} is called in its place; "
            "each group that it drops is replaced by one other, and none is kept for want of others"
        )
    if config.over_sampling_batch_size is not None:
        notes += _on_over_sampling(config, config.over_sampling_batch_size)
    return notes


def _on_over_sampling(config: RunConfig, wanted: int) -> Iterator[str]:
    batch, gives_up = config.rollout_batch_size, config.gives_up_surplus
    if config.dynamic_sampling_filter_path is None:
        effect = "give up the slowest of them" if gives_up else "make older groups"
        yield (
            f"--over-sampling-batch-size {wanted} without --dynamic-sampling-filter-path: no group "
            f"is filtered, so more than {batch} in the making only {effect}"
        )
    if gives_up and wanted > batch:
        unfinished = "begins anew in the next one" if config.partial_rollout else "is given up"
        yield (
            f"--over-sampling-batch-size {wanted}: when {batch} groups fill an iteration, the rest "
            f"is surplus, and a task that was unfinished {unfinished}; to go on with it, its "
            "tokens must be trained one iteration old: train_async.py --async-buffer-size "
            f"{-(-wanted // batch) - 1}"
        )
