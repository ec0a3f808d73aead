"""One iteration: the rows of a lease become micro-batches, and those M optimizer steps.

Every rank runs this with the same header; what differs is its shard. At the first step the policy
at the start of the iteration is the current one: its log-probabilities need no pass of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.learner.backend import LossFn, MicroBatch, StepResult, TrainBackend
from agentrl.learner.batch import BatchCounts, BatchRules, TrainSequence, build_sequence, pack
from agentrl.learner.custom import load_loss
from agentrl.learner.loss import Objective, PolicyLoss
from agentrl.learner.plan import PlannedRow, plan_iteration
from agentrl.learner.rows import Trajectory
from agentrl.learner.supervised import SupervisedLoss, build_demonstration
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader, TrajectoryRow

__all__ = ["IterationResult", "train_lease"]

BuildSequence = Callable[[PlannedRow, Trajectory], TrainSequence]
FetchRows = Callable[[Sequence[TrajectoryRow]], Sequence[Trajectory | None]]


@dataclass(frozen=True, slots=True)
class IterationResult:
    """Outcome of an iteration over all data-parallel ranks. `max_trained_age`: -1 when no token
    was trained."""

    steps: tuple[StepResult, ...]
    counts: BatchCounts
    max_trained_age: int

    @property
    def skipped(self) -> bool:
        """Whether no step changed the weights."""
        return all(step.skipped for step in self.steps)


def train_lease(
    header: LeaseHeader,
    cfg: RunConfig,
    backend: TrainBackend,
    lineage: Lineage,
    fetch: FetchRows,
) -> IterationResult:
    """Train on a lease. Collective. Raises as `plan_iteration`, `fetch`, `Lineage.checked_age`."""
    plans = plan_iteration(header, cfg, backend.data_parallel_size)
    shards = [plan.shards[backend.data_parallel_rank] for plan in plans]
    rules = BatchRules(
        number=header.number,
        lineage=lineage,
        max_staleness=cfg.staleness_bound,
        mask_off_policy_turns=cfg.masks_off_policy_turns,
        score_all=cfg.loss_type == "custom_loss",
    )
    counts = BatchCounts()
    max_age = -1
    batches: list[list[MicroBatch]] = []
    build = partial(build_sequence, rules=rules)
    if cfg.is_supervised:
        build = partial(build_demonstration, context_weight=cfg.prompt_loss_weight)
    for sequences, missing in _load(shards, build, fetch):
        counts = sum((sequence.counts for sequence in sequences), start=counts + missing)
        max_age = max([max_age, *(sequence.max_trained_age for sequence in sequences)])
        batches.append(pack(sequences, cfg.micro_batch_tokens))
    if len(batches) > 1 and not cfg.is_supervised:
        batches = [batches[0], *_with_logprobs(batches[1:], "prox", backend)]
    objective = Objective.from_config(cfg)
    if objective.kl_type is not None and batches:
        batches = _with_logprobs(batches, "reference", backend)
    steps = [backend.step(micro_batches, _loss(objective, cfg)) for micro_batches in batches]
    return IterationResult(tuple(steps), *_over_ranks(counts, max_age, backend))


def _load(
    shards: Sequence[Sequence[PlannedRow]], build: BuildSequence, fetch: FetchRows
) -> list[tuple[list[TrainSequence], BatchCounts]]:
    """For each step, its sequences on this rank and what is missing from it."""
    trajectories = iter(fetch([planned.row for shard in shards for planned in shard]))
    loaded = []
    for shard in shards:
        sequences: list[TrainSequence] = []
        missing = BatchCounts()
        for planned in shard:
            trajectory = next(trajectories)
            if trajectory is None:
                missing += _missing(planned.row)
            else:
                sequences.append(build(planned, trajectory))
        loaded.append((sequences, missing))
    return loaded


def _missing(row: TrajectoryRow) -> BatchCounts:
    turns = row.meta.num_turns
    return BatchCounts(
        num_removed=row.meta.num_sampled, num_turns=turns, num_masked_turns=turns, num_missing=1
    )


def _with_logprobs(
    batches: Sequence[Sequence[MicroBatch]], column: str, backend: TrainBackend
) -> list[list[MicroBatch]]:
    """The same micro-batches with one more column, from a single forward pass over all steps."""
    flat = [micro_batch for step in batches for micro_batch in step]
    logprobs = iter(backend.logprobs(flat, reference=column == "reference"))
    return [[_with_column(mb, column, next(logprobs)) for mb in step] for step in batches]


def _with_column(micro_batch: MicroBatch, name: str, column_T: Tensor) -> MicroBatch:
    return replace(micro_batch, columns={**micro_batch.columns, name: column_T})


def _loss(objective: Objective, cfg: RunConfig) -> LossFn:
    match cfg.loss_type:
        case "sft_loss":
            return SupervisedLoss()
        case "custom_loss":
            return load_loss(cfg.custom_loss_function_path)
        case _:
            return PolicyLoss(objective, max_age=cfg.staleness_bound)


def _over_ranks(
    counts: BatchCounts, max_age: int, backend: TrainBackend
) -> tuple[BatchCounts, int]:
    """Counts summed and the age maximised over data-parallel ranks, in one reduction: each rank
    writes its age (shifted to be >= 0) in its own slot."""
    ages = [0.0] * backend.data_parallel_size
    ages[backend.data_parallel_rank] = max_age + 1.0
    values = counts.values()
    total = backend.all_reduce_sum([*map(float, values), *ages])
    summed = BatchCounts(*(int(value) for value in total[: len(values)]))
    return summed, int(max(total[len(values) :])) - 1
