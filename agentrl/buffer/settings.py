"""`BufferSettings`: everything the buffer must know of a run, and nothing else."""

import msgspec

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.types import SamplingParams

__all__ = ["BufferSettings"]


class BufferSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and bounds. Names in brackets are those of the design's formulas.

    `num_rollout` None: until the task source ends. `min_group_size` None: all episodes of a group.
    A trajectory of a version that is not announced yet waits `publish_grace_s` for it: engines
    serve new weights a moment before the learner can say so.
    `buffer_disk_limit`, `keep_trajectories` and `segment_bytes` are bytes; a segment is closed once
    it is that long. Kept trajectories do not count against `buffer_disk_limit`.
    """

    address: str
    rollout_batch_size: int  # N
    n_samples_per_prompt: int = 1
    min_group_size: int | None = None
    async_buffer_size: int = 2  # B
    update_weights_interval: int = 1  # I
    max_staleness: int = 2  # S
    num_rollout: int | None = None
    buffer_disk_limit: int = 64 * 1024**3
    keep_trajectories: int = 256 * 1024**2
    heartbeat_s: float = 1.0
    liveness_s: float = 10.0
    publish_grace_s: float = 600.0
    sampling: SamplingParams = SamplingParams()
    rollout_seed: int = 42
    segment_bytes: int = 64 * 1024**2

    def __post_init__(self) -> None:
        if self.min_group_size is not None and self.min_group_size > self.n_samples_per_prompt:
            raise ConfigError(
                f"--min-group-size {self.min_group_size} exceeds --n-samples-per-prompt"
                f" {self.n_samples_per_prompt}: no group could ever be trained"
            )
        if self.liveness_s <= self.heartbeat_s:
            raise ConfigError(
                f"liveness_s {self.liveness_s} must exceed heartbeat_s {self.heartbeat_s}:"
                " every peer would be declared lost between two heartbeats"
            )

    @classmethod
    def from_config(
        cls, config: RunConfig, address: str, sampling: SamplingParams
    ) -> "BufferSettings":
        """The settings of a resolved run that serves on `address`."""
        return cls(
            address=address,
            rollout_batch_size=config.rollout_batch_size,
            n_samples_per_prompt=config.n_samples_per_prompt,
            min_group_size=config.min_group_size,
            async_buffer_size=config.async_buffer_size,
            update_weights_interval=config.update_weights_interval,
            max_staleness=config.staleness_bound,
            num_rollout=config.num_rollout,
            buffer_disk_limit=config.buffer_disk_limit,
            keep_trajectories=config.keep_trajectories,
            publish_grace_s=2 * config.update_weights_timeout,
            sampling=sampling,
            rollout_seed=config.rollout_seed,
        )

    @property
    def least_done(self) -> int:
        """Episodes with outcome done that a group needs to be trained."""
        if self.min_group_size is not None:
            return self.min_group_size
        return self.n_samples_per_prompt

    @property
    def charged_limit(self) -> int:
        """Invariant I6: (min(B, S) + I) * N groups."""
        ahead = min(self.async_buffer_size, self.max_staleness)
        return (ahead + self.update_weights_interval) * self.rollout_batch_size
