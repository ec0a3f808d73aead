"""Prefill apart from decoding: where two engines make a turn together, what cannot be right.

A push that meets such a turn is no push: SGLang (0.5.23) keeps no record of which weights sampled
the tokens of a turn that an engine has to begin anew (`record_weight_version_change` looks at
batches and queues, and not at what is held for that), and refuses to drop a cache that is being
handed on. So generation has to wait for the learner.
"""

from collections.abc import Iterator

from agentrl.config.device import Device
from agentrl.config.engine_settings import FILE, ways_of_groups
from agentrl.config.run import RunConfig

__all__ = ["PREFILL", "about_prefill", "about_prefill_on"]

PREFILL = "--prefill-num-servers"
#: Backends of a transfer whose buffers SGLang registers anew when a cache is taken again.
_REGISTERED_ANEW = ("mooncake", "mooncake_tcp", "ascend")


def about_prefill_on(config: RunConfig, device: Device) -> Iterator[str]:
    """What keeps prefill apart from a device."""
    if device == "cpu" and config.has_prefill_apart:
        yield (
            f"{PREFILL if config.prefill_num_servers else FILE}: engines that prefill hand the "
            "cache on over a transfer engine (RDMA, NVLink), and SGLang has none for the CPU; "
            "give engines of one kind there"
        )


def about_prefill(config: RunConfig) -> Iterator[str]:
    """What cannot be right where two engines make a turn together."""
    name = PREFILL if config.prefill_num_servers is not None else FILE
    is_ahead = config.num_ahead or config.update_weights_interval > 1
    if is_ahead and not config.eval_only:
        yield (
            f"{name}: prefill apart with --async-buffer-size {config.async_buffer_size} and "
            f"--update-weights-interval {config.update_weights_interval}: of a turn that meets a "
            "push SGLang forgets which weights sampled what an engine that decodes had so far, and "
            "keeps no push while a cache is handed on; use train.py, or --async-buffer-size 0 and "
            "--update-weights-interval 1"
        )
    wanted = config.over_sampling_batch_size or 0
    if wanted > config.rollout_batch_size:
        yield (
            f"{name}: prefill apart with --over-sampling-batch-size {wanted}: turns of groups that "
            "are given up may be between two engines when a push comes, which then fails; leave "
            "one of the two out"
        )
    reasons = {
        "--kv-across-pushes keep": (
            config.keeps_cache,
            "no turn may meet a push, so there is no cache to keep",
        ),
        "--use-rollout-routing-replay": (
            config.replays_engine_routes,
            "the engine that decodes is not told the experts of the prompt",
        ),
    }
    for other, (is_given, why) in reasons.items():
        if is_given:
            yield f"{name}: prefill apart and {other}: {why}; leave out one of the two"
    if config.colocate and config.offload_rollout:
        yield from _about_transfers(config, name)


def _about_transfers(config: RunConfig, name: str) -> Iterator[str]:
    flag = "--sglang-disaggregation-transfer-backend"
    for where, way in ways_of_groups(config):
        backend = way.sglang.get("disaggregation_transfer_backend", "mooncake")
        if backend not in _REGISTERED_ANEW:
            yield (
                f"{where or name}: prefill apart over {flag} {backend} and --colocate: engines "
                "give their cache up and take another, of which that backend is not told; use "
                "mooncake, or --no-offload-rollout"
            )
