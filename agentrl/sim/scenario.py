"""What is simulated: machines, schedule, workload and faults, as data.

Fields that are flags of a run have the flag's name. Letters in brackets are those of the design's
formulas.
"""

import msgspec

from agentrl.buffer.settings import BufferSettings
from agentrl.config.run import StalenessPolicy
from agentrl.errors import ConfigError
from agentrl.sim.engine import Speed
from agentrl.sim.workload import Workload

__all__ = ["Faults", "LearnerCost", "Scenario"]


class LearnerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one GPU, shared evenly by the learner's GPUs: for each optimizer step, and for
    each sampled token of an iteration. `push_s` are seconds in which engines stand still; `save_s`
    those of a checkpoint."""

    step_gpu_s: float = 960.0
    token_gpu_s: float = 0.0
    push_s: float = 3.0
    save_s: float = 0.0


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds between two faults of a kind, 0 for none, each with a down time of `down_s` in
    the mean; the mean seconds that a message takes, 0 for none; and the share of Acks that the
    buffer drops, as it does where a peer's queue is full, of episodes whose Env fails, and of
    groups that the filter drops."""

    worker_s: float = 0.0
    engine_s: float = 0.0
    learner_s: float = 0.0
    buffer_s: float = 0.0
    connection_s: float = 0.0
    stall_s: float = 0.0
    delay_s: float = 0.0
    down_s: float = 10.0
    ack_drop_share: float = 0.0
    env_error_share: float = 0.0
    filtered_share: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `iterations` iterations. `drain_before_push`: a push waits until no episode plays,
    as schedules do that are not asynchronous. `writes_behind`: checkpoints are written while the
    learner goes on.

    Where no new iteration ends for `patience_s` of virtual time, faults pause; after as long again
    the run is stuck.
    """

    workload: Workload = Workload()
    seed: int = 0
    iterations: int = 100
    rollout_batch_size: int = 32  # N
    n_samples_per_prompt: int = 8
    min_group_size: int | None = None
    async_buffer_size: int = 4  # B
    update_weights_interval: int = 1  # I
    max_staleness: int = 4  # S
    staleness_policy: StalenessPolicy = "mask"
    partial_rollout: bool = True
    over_sampling_batch_size: int | None = None
    num_steps_per_rollout: int = 1
    save_interval: int = 1
    writes_behind: bool = False
    drain_before_push: bool = False
    num_engines: int = 8
    gpus_per_engine: int = 1
    num_learner_gpus: int = 8
    sglang_server_concurrency: int = 64
    num_agent_workers: int = 4
    scoring_s: float = 0.0
    speed: Speed = Speed()
    learner: LearnerCost = LearnerCost()
    faults: Faults = Faults()
    retry_pause_s: float = 0.0
    segment_bytes: int = 64 * 1024**2
    heartbeat_s: float = 60.0
    liveness_s: float = 600.0
    patience_s: float = 200_000.0

    def __post_init__(self) -> None:
        if self.max_staleness < self.update_weights_interval - 1:
            raise ConfigError(
                f"S = {self.max_staleness} is below I - 1 = {self.update_weights_interval - 1}:"
                " just before a push every token would be older than the bound"
            )
        if self.num_engines < 1 or self.num_learner_gpus < 1:
            raise ConfigError(
                f"{self.num_engines} engines and {self.num_learner_gpus} GPUs of the learner: a run"
                " needs one of each"
            )
        if self.speed.alone_s <= 0:
            raise ConfigError("an engine takes no time for a token: give it some")

    @property
    def permits_per_worker(self) -> int:
        """Turns of one worker that may be on engines at a time."""
        total = self.num_engines * self.sglang_server_concurrency
        return max(1, total // self.num_agent_workers)

    @property
    def max_concurrent_episodes(self) -> int:
        """Room of one worker: all workers together can hold whatever may be minted."""
        episodes = self.most_charged * self.n_samples_per_prompt
        return -(-episodes // self.num_agent_workers)

    @property
    def most_charged(self) -> int:
        """Groups that may be charged at once."""
        return self.buffer.charged_limit

    @property
    def buffer(self) -> BufferSettings:
        """The settings of the production core: fields of one name are the same. Its disk is without
        bound."""
        same = set(BufferSettings.__struct_fields__) & set(self.__struct_fields__)
        return BufferSettings(
            **{name: getattr(self, name) for name in sorted(same)},
            address="sim",
            buffer_disk_limit=2**62,
            keep_trajectories=0,
            num_permits=self.num_engines * self.sglang_server_concurrency,
        )

    def iteration_s(self, num_tokens: int) -> float:
        """Seconds in which the learner trains on so many sampled tokens."""
        cost = self.learner
        gpu_s = cost.step_gpu_s * self.num_steps_per_rollout + cost.token_gpu_s * num_tokens
        return gpu_s / self.num_learner_gpus
