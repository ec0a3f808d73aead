"""One iteration: the rows of a lease become micro-batches, on which M optimizer steps train.

Every rank runs this with the same header; what differs is its shard. At the first step the policy
at the start of the iteration is the current one: its log-probabilities need no pass of their own.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from agentrl.algorithms.base import PASSES, Algorithm, Needs
from agentrl.algorithms.mismatch import with_mismatch
from agentrl.algorithms.rows import LossFn, Row
from agentrl.config.mixture import temperatures
from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.learner.backend import Models, StepResult
from agentrl.learner.batch import (
    BatchCounts,
    BatchRules,
    TrainSequence,
    build_sequence,
    check_columns,
    check_masks,
    micro_batch,
    pack,
)
from agentrl.learner.collective_errors import require_same
from agentrl.learner.conversion import converted_lease
from agentrl.learner.data_postprocess import postprocess
from agentrl.learner.held_loss import HeldLoss, without_logits
from agentrl.learner.hooks import CONVERT, SAMPLE_FILTER, LearnerHooks
from agentrl.learner.plan import PlannedRow, plan_iteration
from agentrl.learner.profiling import Profiler
from agentrl.learner.rows import FetchRows
from agentrl.learner.sample_filter import removed_episodes
from agentrl.learner.train_data import save_train_data
from agentrl.lineage import Lineage
from agentrl.types import LeaseHeader, TrajectoryRow

__all__ = ["IterationResult", "train_lease"]

_LOG = logging.getLogger(__name__)

#: A step without a trained token is not taken: its gradient is 0, and yet an optimizer would move
#: the weights by what it remembers of the steps before.
_NOT_TAKEN = StepResult(skipped=True, grad_norm=0.0, lr=0.0, metrics={})


@dataclass(frozen=True, slots=True)
class IterationResult:
    """Outcome of an iteration over all data-parallel ranks. `steps`: those of each model that it
    trained, by name. `max_trained_age`: -1 when no token was trained. `num_filtered`: episodes that
    a function of the user's left out; None without one."""

    steps: Mapping[str, tuple[StepResult, ...]]
    counts: BatchCounts
    max_trained_age: int
    num_filtered: int | None = None

    @property
    def skipped(self) -> bool:
        """Whether steps were tried and none was finite. Steps without a trained token are not
        tried."""
        tried = [one for steps in self.steps.values() for one in steps if one is not _NOT_TAKEN]
        return bool(tried) and all(step.skipped for step in tried)


def train_lease(
    header: LeaseHeader,
    algorithm: Algorithm,
    backend: Models,
    lineage: Lineage,
    fetch: FetchRows,
    hooks: LearnerHooks | None = None,
    profiler: Profiler | None = None,
    fetch_alone: FetchRows | None = None,
) -> IterationResult:
    """Train on a lease, calling `hooks` if there are any. `fetch_alone`: where `fetch` is
    collective, what fetches for one rank. Collective. Raises as `plan_iteration`, `fetch`,
    `Lineage.checked_age`, HookError, and DataError where ranks do not plan alike."""
    profiler = profiler or Profiler()
    hooks = LearnerHooks(RunConfig()) if hooks is None else hooks
    hooks.iteration = header.number
    removed = removed_episodes(hooks, algorithm.cfg, header, backend.all_gather)
    lease = converted_lease(hooks, algorithm.cfg, header, removed, fetch_alone or fetch, backend)
    removed |= lease.left_out
    algorithm.begin(lease.header)
    plans = plan_iteration(header, algorithm, backend.data_parallel_size, removed)
    require_same(
        {f"plan of lease {header.number}": plans, "`state`": algorithm.state()},
        backend.all_gather,
        f"{algorithm.name} must answer alike in every process; what goes through a set, `hash`, a "
        "clock or an unseeded generator does not",
    )
    shards = [plan.shards[backend.data_parallel_rank] for plan in plans]
    rules = BatchRules(
        number=header.number,
        lineage=lineage,
        algorithm=algorithm,
        of_backend=backend.columns,
        kept=lease.kept,
        temperatures=temperatures(algorithm.cfg),
    )
    loaded = _load(shards, rules, fetch)
    steps = [
        pack([sequence.row for sequence in sequences], algorithm.cfg.micro_batch_tokens)
        for sequences, _ in loaded
    ]
    if passes := _passes(steps, algorithm.needs):
        with profiler.part("train_log_probs", header.number):
            for column, passed in passes:
                _run_pass(column, passed, backend)
    by_step = [[row for rows in step for row in rows] for step in steps]
    scale = _complete([row for rows in by_step for row in rows], algorithm, backend, hooks)
    for rows in by_step:
        check_columns(rows, rules)
    num_trained = backend.all_reduce_sum([_num_trained(rows) for rows in by_step])
    save_train_data(algorithm.cfg, header.number, by_step, backend)
    results: dict[str, list[StepResult]] = {name: [] for name in _trained(algorithm, header.number)}
    with profiler.part("train_actor", header.number):
        for index, step in enumerate(steps):
            hooks.step = index
            if not num_trained[index]:
                _LOG.info(
                    "iteration %d: step %d of %d is not taken, because it has no token to train",
                    header.number,
                    index + 1,
                    len(steps),
                )
                for done in results.values():
                    done.append(_NOT_TAKEN)
                continue
            batches = [micro_batch(rows) for rows in step]
            for model, done in results.items():
                loss_fn, rate = _loss(algorithm, model, index), scale if model == "policy" else 1.0
                done.append(backend.step(model, batches, loss_fn, rate))
    taken = {model: tuple(done) for model, done in results.items()}
    num_filtered = len(removed) if SAMPLE_FILTER in hooks or CONVERT in hooks else None
    return IterationResult(taken, *_over_ranks(loaded, backend), num_filtered)


def _complete(
    rows: Sequence[Row], algorithm: Algorithm, backend: Models, hooks: LearnerHooks
) -> float:
    """Give rows what the loss reads beside the passes; returns what the learning rate is multiplied
    with. Collective."""
    masks = [row.columns["mask"] for row in rows]
    algorithm.advantages(rows, backend.all_reduce_sum)
    check_masks(rows, masks, algorithm)
    postprocess(hooks, algorithm, rows, backend)
    masks = [row.columns["mask"] for row in rows]
    algorithm.keep(rows, backend.all_reduce_sum)
    algorithm.reduce(rows)
    scale = algorithm.lr_scale(rows, backend.all_reduce_sum)
    check_masks(rows, masks, algorithm)
    return scale


def _num_trained(rows: Sequence[Row]) -> float:
    """Labels of this replica that are trained."""
    return float(sum(int(row.columns["mask"].sum()) for row in rows))


def _trained(algorithm: Algorithm, iteration: int) -> tuple[str, ...]:
    """The models to step. Raises DataError for others than a policy and a critic."""
    names = algorithm.trains(iteration)
    known = {"policy", "critic"} & {"policy", *algorithm.needs.models}
    if not names or not known.issuperset(names) or len(set(names)) != len(names):
        raise DataError(
            f"{algorithm.name}.trains returned {names!r}: name one or more of "
            f"{', '.join(sorted(known))}, each once (a critic is there for the pass `values`)"
        )
    return names


def _loss(algorithm: Algorithm, model: str, step: int) -> HeldLoss:
    """Of the policy, engine and learner are compared at the start of the iteration: beside a later
    step, only where a pass has made the column for it anyway."""
    loss_fn: LossFn = partial(algorithm.loss, model)
    needs = algorithm.needs
    if not needs.logits:
        loss_fn = without_logits(loss_fn)
    has_prox = step == 0 or needs.later_prox or "prox" in needs.passes
    if model == "policy" and needs.engines and has_prox:
        loss_fn = with_mismatch(loss_fn, algorithm.cfg.staleness_bound)
    return HeldLoss(loss_fn)


def _load(
    shards: Sequence[Sequence[PlannedRow]], rules: BatchRules, fetch: FetchRows
) -> list[tuple[list[TrainSequence], BatchCounts]]:
    """For each step, its sequences on this rank and what is missing from it: what is damaged, and
    where whole episodes are wanted, all of an episode of which something is."""
    rows = [planned.row for shard in shards for planned in shard]
    trajectories = iter(fetch(rows, rules.fetched))
    loaded = []
    for shard in shards:
        sequences: list[TrainSequence] = []
        missing = BatchCounts()
        fetched = [(planned, next(trajectories)) for planned in shard]
        lost = {planned.row.episode for planned, trajectory in fetched if trajectory is None}
        for planned, trajectory in fetched:
            if trajectory is None:
                missing += _missing(planned.row, 1)
            elif rules.algorithm.needs.whole_episodes and planned.row.episode in lost:
                missing += _missing(planned.row, 0)
            else:
                sequences.append(build_sequence(planned, trajectory, rules))
        loaded.append((sequences, missing))
    return loaded


def _missing(row: TrajectoryRow, num_damaged: int) -> BatchCounts:
    turns = row.meta.num_turns
    return BatchCounts(
        num_removed=row.meta.num_sampled,
        num_turns=turns,
        num_masked_turns=turns,
        num_missing=num_damaged,
    )


def _passes(
    steps: Sequence[Sequence[Sequence[Row]]], needs: Needs
) -> list[tuple[str, Sequence[Sequence[Sequence[Row]]]]]:
    """The columns that a forward pass makes, each with the steps that want it. Without asking, the
    later steps of a policy have `prox`: at the first one it is the current policy."""
    found = []
    if "prox" in needs.passes:
        found.append(("prox", steps))
    elif needs.engines and needs.later_prox and len(steps) > 1:
        found.append(("prox", steps[1:]))
    return found + [(name, steps) for name in sorted(needs.passes - {"prox"}) if steps]


def _run_pass(column: str, steps: Sequence[Sequence[Sequence[Row]]], backend: Models) -> None:
    """One more column, from a single forward pass over those steps."""
    batches = [rows for step in steps for rows in step]
    found = backend.run(PASSES[column], [micro_batch(rows) for rows in batches])
    for rows, values_T in zip(batches, found, strict=True):
        parts = torch.split(values_T, [len(row.tokens_L) for row in rows])
        for row, part_L in zip(rows, parts, strict=True):
            row.columns[column] = part_L.numpy()


def _over_ranks(
    loaded: Sequence[tuple[Sequence[TrainSequence], BatchCounts]], backend: Models
) -> tuple[BatchCounts, int]:
    """Counts summed and the age maximized over data-parallel ranks, in one reduction: each rank
    writes its age (shifted to be >= 0) in its own slot."""
    sequences = [sequence for each, _ in loaded for sequence in each]
    counted = (*(missing for _, missing in loaded), *(sequence.counts for sequence in sequences))
    counts = sum(counted, start=BatchCounts())
    max_age = max((sequence.max_trained_age for sequence in sequences), default=-1)
    ages = [0.0] * backend.data_parallel_size
    ages[backend.data_parallel_rank] = max_age + 1.0
    values = counts.values()
    total = backend.all_reduce_sum([*map(float, values), *ages])
    summed = BatchCounts(*(int(value) for value in total[: len(values)]))
    return summed, int(max(total[len(values) :])) - 1
