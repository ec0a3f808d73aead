"""`BufferSettings`: everything the buffer must know of a run, and nothing else."""

import msgspec

from agentrl.config.run import RunConfig, StalenessPolicy
from agentrl.config.unread import is_read
from agentrl.errors import ConfigError
from agentrl.types import SamplingParams, Task

__all__ = ["SEGMENT_BYTES", "BufferSettings"]

#: Where a segment is closed.
SEGMENT_BYTES = 64 * 1024**2

#: Functions of the user's that see the rows of the tasks of a lease.
_SEE_ROWS = ("custom_rollout_log_function_path", "custom_convert_samples_to_train_data_path")

#: A process that failed two attempts at an episode starts again, which takes 10 to 30 s.
RETRY_PAUSE_S = 30.0


class BufferSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and bounds. Names in brackets are those of the design's formulas.

    `num_rollout` None: until the task source ends; `max_total_sampled_tokens` None: whatever it
    samples. `min_group_size` None: all episodes of a group.
    `staleness_policy`: a group with a token older than S is leased, and the learner masks the token
    (mask), or it is dropped before and its task minted again (drop). Without `partial_rollout`
    workers hear of new weights, and the task of a group that is cut short as surplus is given up.
    A trajectory of a version that is not announced yet waits `publish_grace_s` for it, then it is
    poison: a version is announced before an engine holds it, so this one's learner died in between.
    The last attempt at an episode begins `retry_pause_s` after the one before it failed.
    `sampling`: how turns are sampled, but for tasks of the parts of a mixture.
    `num_permits`: turns that engines take at once (None: no bound but the workers' room);
    `num_eval_permits`: those that engines of evaluations take, where there are any. An
    evaluation of which no episode ends for `hold_patience_s` holds pushes back no longer.
    `tells_rows`: leases tell the rows of their tasks; `tells_judged`: the driver is told of each
    group that was scored.
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
    staleness_policy: StalenessPolicy = "mask"
    partial_rollout: bool = True
    keeps_cache: bool = False
    over_sampling_batch_size: int | None = None  # Q; None: N
    num_rollout: int | None = None
    max_total_sampled_tokens: int | None = None
    buffer_disk_limit: int = 64 * 1024**3
    keep_trajectories: int = 256 * 1024**2
    heartbeat_s: float = 1.0
    liveness_s: float = 10.0
    publish_grace_s: float = 600.0
    retry_pause_s: float = 0.0
    num_permits: int | None = None
    num_eval_permits: int | None = None
    hold_patience_s: float = 7200.0
    sampling: SamplingParams = SamplingParams()
    sampling_of_parts: dict[str, SamplingParams] = {}
    rollout_seed: int = 42
    tells_rows: bool = False
    tells_judged: bool = False
    segment_bytes: int = SEGMENT_BYTES

    def __post_init__(self) -> None:
        if self.min_group_size is not None and self.min_group_size > self.n_samples_per_prompt:
            raise ConfigError(
                f"--min-group-size {self.min_group_size} exceeds --n-samples-per-prompt"
                f" {self.n_samples_per_prompt}: no group could ever be trained"
            )
        if not self.charged_least <= self.charged_limit:
            raise ConfigError(
                f"--over-sampling-batch-size {self.over_sampling_batch_size} makes"
                f" {self.charged_least} groups the least that is charged, and at most"
                f" {self.charged_limit} may be"
            )
        if self.liveness_s <= self.heartbeat_s:
            raise ConfigError(
                f"liveness_s {self.liveness_s} must exceed heartbeat_s {self.heartbeat_s}:"
                " every peer would be declared lost between two heartbeats"
            )

    @classmethod
    def from_config(
        cls,
        config: RunConfig,
        address: str,
        sampling: SamplingParams,
        sampling_of_parts: dict[str, SamplingParams] | None = None,
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
            staleness_policy=config.staleness_policy,
            partial_rollout=config.partial_rollout,
            keeps_cache=config.keeps_cache,
            over_sampling_batch_size=config.over_sampling_batch_size,
            num_rollout=config.num_rollout,
            max_total_sampled_tokens=config.max_total_sampled_tokens,
            buffer_disk_limit=config.buffer_disk_limit,
            keep_trajectories=config.keep_trajectories,
            publish_grace_s=2 * config.update_weights_timeout,
            retry_pause_s=RETRY_PAUSE_S,
            num_permits=config.num_permits,
            num_eval_permits=config.num_eval_permits,
            hold_patience_s=2 * config.episode_timeout_s,
            sampling=sampling,
            sampling_of_parts=sampling_of_parts or {},
            rollout_seed=config.rollout_seed,
            tells_rows=any(
                is_read(config, name) and getattr(config, name) is not None for name in _SEE_ROWS
            ),
            tells_judged=config.rollout_all_samples_process_path is not None,
        )

    def sampling_of(self, task: Task) -> SamplingParams:
        """How turns of `task` are sampled."""
        return self.sampling_of_parts.get(task.part, self.sampling)

    @property
    def least_done(self) -> int:
        """Episodes with outcome done that a group needs to be trained."""
        if self.min_group_size is not None:
            return self.min_group_size
        return self.n_samples_per_prompt

    @property
    def tells_versions(self) -> bool:
        """Whether workers hear of each version that engines serve."""
        return self.keeps_cache or not self.partial_rollout

    @property
    def charged_least(self) -> int:
        """(I - 1) * N + Q: this many may always be charged, of which the learner holds (I - 1) * N
        at most while it waits."""
        wanted = self.over_sampling_batch_size or self.rollout_batch_size
        return (self.update_weights_interval - 1) * self.rollout_batch_size + wanted

    @property
    def charged_limit(self) -> int:
        """Invariant I6: (min(B, S) + I) * N groups; Q, if more, where the surplus is given up."""
        ahead = min(self.async_buffer_size, self.max_staleness)
        limit = (ahead + self.update_weights_interval) * self.rollout_batch_size
        return max(limit, self.charged_least) if self.is_on_policy else limit

    @property
    def is_on_policy(self) -> bool:
        """S = 0: a token is trained in the one lease after the weights that sampled it."""
        return self.max_staleness == 0 and self.update_weights_interval == 1
