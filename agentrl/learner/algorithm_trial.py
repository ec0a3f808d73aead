"""A user's algorithm is tried before anything starts, on a lease that nobody played.

    parent: try_algorithm -> child: two iterations over a table of scores -> verdict, or deadline

Three groups: one whose rewards are equal, one with an episode that failed, one of episodes with two
segments and two roles. The path is the learner's own (`train_lease`); the backend looks at what
each micro-batch is given and gives back. Refused are what the path itself refuses (an answer of a
wrong length, or not finite), a loss that is none, a gradient at a label that is not trained, a loss
that depends on the order of micro-batches, credit that is not the same twice, a state that does not
come back, and a hang: each with a line of the user's file; and flags that it never asks for. The
process is killed with all that it began.

Functions that every rank of the learner calls (`LearnerHooks`) may speak to other ranks, of which
there are none here: a run does not try them, `play_with_hooks` does for those who ask.
"""

import faulthandler
import inspect
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms.base import Algorithm, credits_of
from agentrl.algorithms.load import check_algorithm, load_algorithm, users_flag
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.columns import COLUMNS, TEACHER_LOGPROBS, Column
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, DataError, HookError
from agentrl.learner.backend import StepResult
from agentrl.learner.held_loss import HeldLoss, untrained
from agentrl.learner.hooks import CONVERT, DATA_POSTPROCESS, SAMPLE_FILTER, LearnerHooks
from agentrl.learner.iteration import train_lease
from agentrl.learner.measures import Measures, joined, measured
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.learner.unread_terms import Noting, unread_terms
from agentrl.lineage import Lineage
from agentrl.trial import answer, asked, places_in, run_apart
from agentrl.types import (
    EpisodeFacts,
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    SpanKind,
    StopReason,
    TrajectoryMeta,
    TrajectoryRow,
    VersionRow,
)
from agentrl.user_traceback import is_users, shown_path, words_of

__all__ = ["LIMIT_S", "play_with_hooks", "trial_here", "try_algorithm"]

#: Seconds that the two iterations may take: they take milliseconds.
LIMIT_S = 60.0
#: Seconds that the process has to start in, and to import torch.
_START_S = 300.0
_VOCABULARY = 16
#: What a loss in slime's signature has of the mask.
_OR_SLIMES = 'or in slime\'s signature sum_of_sample_mean or batch["loss_masks"]'


def try_algorithm(
    cfg: RunConfig, said: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> None:
    """Raise ConfigError for an algorithm that fails its trial, and for a flag of its objective that
    it never reads. `said`: the fields that somebody set, as they were spelled."""
    question = msgspec.json.encode((cfg, said or {}, limit_s))
    ended = run_apart(__name__, question, limit_s + _START_S)
    if ended.answer:
        text = msgspec.json.decode(ended.answer, type=str)
    else:
        text = _of_a_death(ended.printed, limit_s)
    if text:
        raise ConfigError(_told(cfg, text))


def trial_here(cfg: RunConfig, said: Mapping[str, str]) -> None:
    """The same in this process, whatever becomes of it."""
    if text := _verdict(cfg, said):
        raise ConfigError(_told(cfg, text))


def play_with_hooks(cfg: RunConfig, row: Mapping[str, Any] | None = None) -> None:
    """Train the two iterations in this process, with the functions that the learner calls. `row`:
    of the task that all groups play. Raises ConfigError for flags that no run takes, and HookError
    as a run does in its first iteration."""
    check_algorithm(cfg)
    small = _small(cfg)
    hooks = LearnerHooks(small)
    try:
        _play(load_algorithm(small), hooks, row)
    except _BrokenError as error:
        fields = (SAMPLE_FILTER, CONVERT, DATA_POSTPROCESS)
        said = [hooks.said(field) for field in fields if field in hooks]
        raise HookError(f"{' with '.join(said)}: {error}") from error


def _told(cfg: RunConfig, text: str) -> str:
    return text if text.startswith("--") else f"{users_flag(cfg)}: {text}"


def _of_a_death(said: str, limit_s: float) -> str:
    """What to say of a process that gave no verdict: faulthandler names the line, innermost
    first."""
    place = next(places_in(said), "the program")
    if "Timeout" in said:
        return f"{place} did not come to an end within {limit_s:g} s on a small lease"
    return f"{place} ended the process: {' '.join(said.split())[-300:]}"


# ---- in the process of its own -------------------------------------------------------------------


def main() -> None:
    """What the child runs."""
    question = msgspec.json.decode(asked(), type=tuple[RunConfig, dict[str, str], float])
    cfg, said, limit_s = question
    faulthandler.dump_traceback_later(limit_s, exit=True)
    verdict = _verdict(cfg, said)
    faulthandler.cancel_dump_traceback_later()
    answer(msgspec.json.encode(verdict))


def _verdict(cfg: RunConfig, said: Mapping[str, str]) -> str:
    return _problem(Noting.of(cfg)) or unread_terms(cfg, said) or ""


def _problem(cfg: RunConfig) -> str | None:
    algorithm: Algorithm | None = None
    try:
        check_algorithm(cfg)
        algorithm = load_algorithm(_small(cfg))
        _play(algorithm)
    except _BrokenError as error:
        return f"{error}{_line_of(algorithm, error.methods)}"
    except (ConfigError, HookError) as error:
        return str(error)
    except DataError as error:
        named = re.search(r"\.(credit|mask|advantages|trains)\b", str(error))
        method = named[1] if named else "loss"
        return f"{error}{_line_of(algorithm, (method, 'values'))}"
    except BaseException as error:  # whatever it is, it is the user's
        return words_of(error)
    return None


def _small(cfg: RunConfig) -> RunConfig:
    """Most episodes of the lease were cut off, and are to have a gradient here. Saves nothing."""
    cfg = msgspec.structs.replace(cfg, save_debug_train_data=None, dump_details=None)
    return msgspec.structs.replace(
        cfg, num_steps_per_rollout=2, max_tokens_per_gpu=24, overlong_filter=False
    )


class _BrokenError(AgentRLError):
    """Its text says what is wrong with what `methods` returned."""

    def __init__(self, text: str, *methods: str) -> None:
        super().__init__(text)
        self.methods = methods


def _play(
    algorithm: Algorithm,
    hooks: LearnerHooks | None = None,
    row: Mapping[str, Any] | None = None,
) -> None:
    bound = algorithm.cfg.staleness_bound
    leases = (bound + 3, bound + 4)
    lineage = Lineage(VersionRow(v, v - 1 if v else None, v) for v in range(leases[-1]))
    backend = _Backend(reads_all=algorithm.needs.all_labels)
    for number in leases:
        lease = _Lease(number, max(3, algorithm.needs.min_group + 1), bound, row)
        train_lease(lease.header, algorithm, backend, lineage, lease.fetch, hooks)
        for group in lease.header.groups:
            if credits_of(algorithm, group) != credits_of(algorithm, group):
                raise _BrokenError(
                    f"the credit of the rewards {group.rewards} is not the same twice: it is asked "
                    "more than once; change state in `begin`",
                    "values",
                    "credit",
                )
            algorithm.teaches(group.rewards[0])
    kept = algorithm.state()
    again = load_algorithm(algorithm.cfg)
    if kept:
        again.restore(kept)
    if again.state() != kept:
        raise _BrokenError("`restore(state())` gives another state", "restore", "state")


def _line_of(algorithm: Algorithm | None, methods: Sequence[str]) -> str:
    """Where the user wrote the first of these methods."""
    for cls in type(algorithm).__mro__:
        for method in methods:
            code = getattr(inspect.unwrap(vars(cls).get(method, len)), "__code__", None)
            if code is not None and is_users(code.co_filename):
                return f" ({shown_path(code.co_filename)}:{code.co_firstlineno})"
    return ""


class _Backend:
    """One rank whose model is a table of scores that learns nothing: the loss is looked at."""

    data_parallel_rank, data_parallel_size = 0, 1
    columns: tuple[Column, ...] = ()
    is_source = True

    def __init__(self, *, reads_all: bool) -> None:
        self._reads_all = reads_all
        generator = torch.Generator().manual_seed(0)
        self._table = torch.randn(_VOCABULARY, _VOCABULARY, generator=generator)
        self._values = torch.randn(_VOCABULARY, generator=generator)

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        found = (self._outputs(model, batch) for batch in micro_batches)
        return [
            (out.logprobs_T if out.values_T is None else out.values_T).detach() for out in found
        ]

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        if isinstance(loss_fn, HeldLoss):
            loss_fn = loss_fn.loss_fn  # to see what it would train
        forth = [self._look(model, batch, loss_fn) for batch in micro_batches]
        back = [self._look(model, batch, loss_fn) for batch in reversed(micro_batches)][::-1]
        for (first, _), (second, _) in zip(forth, back, strict=True):
            if first != second:
                raise _BrokenError(
                    f"the loss of a micro-batch is {first:g}, and {second:g} when the others came "
                    "before it: it must not depend on their order",
                    "loss",
                )
        measures = joined(report for _, report in forth)
        return StepResult(skipped=False, grad_norm=0.0, lr=0.0, metrics=measures)

    def _look(self, model: str, batch: MicroBatch, loss_fn: LossFn) -> tuple[float, Measures]:
        out = self._outputs(model, batch)
        loss, report = loss_fn(batch, out)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not bool(torch.isfinite(loss)):
            shown = f"{loss!r:.100}"
            raise _BrokenError(f"the loss is {shown}; a finite scalar is wanted", "loss")
        if not isinstance(report, Mapping):
            raise _BrokenError(
                f"the loss reports {report!r:.100}; measures by name are wanted", "loss"
            )
        if batch.columns["mask"].any() and not loss.requires_grad:
            raise _BrokenError("the loss has no gradient", "loss", "advantages")
        self._look_at_gradient(batch, loss, out)
        return float(loss.detach()), measured(report)

    def _look_at_gradient(self, batch: MicroBatch, loss: Tensor, out: Outputs) -> None:
        if not loss.requires_grad:
            return
        wrong_T, which = ~batch.columns["mask"], "are not trained: use column `mask`"
        if self._reads_all:
            wrong_T, which = untrained(batch), f"were sampled and {which}, {_OR_SLIMES}"
        made = {"logprobs_T": out.logprobs_T, "entropy_T": out.entropy_T}
        if out.logits is not None:
            made["logits"] = out.logits().logits_TV
        for name, value_T in (made if out.values_T is None else {"values_T": out.values_T}).items():
            (grad_T,) = torch.autograd.grad(
                loss, value_T, retain_graph=True, materialize_grads=True
            )
            if not bool(torch.isfinite(grad_T).all()):
                raise _BrokenError(f"the gradient of the loss by {name} is not finite", "loss")
            if odd := int((grad_T != 0).reshape(len(grad_T), -1).any(-1)[wrong_T].sum()):
                raise _BrokenError(
                    f"the loss has a gradient at {odd} labels of {name} that {which}",
                    "loss",
                )

    def _outputs(self, model: str, batch: MicroBatch) -> Outputs:
        if model == "critic":
            return Outputs.of_critic(self._values[batch.tokens_T].requires_grad_())
        logits = Logits.of_one_rank(self._table[batch.tokens_T].requires_grad_())
        scores = logits.score(logits.logits_TV.detach(), batch.labels_T, 1.0)
        logprobs_T, entropy_T = (score_T.requires_grad_() for score_T in scores)
        return Outputs(logprobs_T, entropy_T, logits=lambda: logits)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        assert data is not None
        return data


class _Lease:
    """A lease of `size` episodes a group, and the rows behind it. The first turn of each trajectory
    is older than `bound`, so that not all that was sampled is trained. `row`: of its task."""

    def __init__(
        self, number: int, size: int, bound: int, row: Mapping[str, Any] | None = None
    ) -> None:
        self._row = dict(row or {})
        self._random = random.Random(number)
        self._number = number
        self._stale = number - 2 - bound
        self._data: list[dict[str, bytes]] = []
        groups = [
            self._group(1, [0.5] * size, self._plain),
            self._group(2, [0.0, *self._rewards(size - 1)], self._plain, failed=1),
            self._group(3, [1.0, *self._rewards(size - 1)], self._segments),
        ]
        self.header = LeaseHeader(number=number, groups=groups)

    def fetch(self, rows: Sequence[TrajectoryRow], optional: Sequence[Column]) -> list[Trajectory]:
        """Of the optional columns only the teacher's has been written: all others are filled."""
        layout = [*COLUMNS, *(column.name for column in optional)]
        found = []
        for row in rows:
            written = self._data[row.payload.offset]
            buffers = [written.get(name, b"") for name in layout]
            found.append(decode_trajectory(row, buffers, optional))
        return found

    def _rewards(self, num: int) -> list[float]:
        return [round(self._random.uniform(-1, 2), 3) for _ in range(num)]

    def _group(
        self,
        mint: int,
        rewards: list[float],
        play: Callable[[EpisodeId, float], Iterator[TrajectoryRow]],
        failed: int | None = None,
    ) -> GroupRows:
        name = f"{mint:08d}"
        done = [(i, reward) for i, reward in enumerate(rewards) if i != failed]
        ids = [EpisodeId(name, index) for index, _ in done]
        rows = [row for index, reward in done for row in play(EpisodeId(name, index), reward)]
        kept = [reward for _, reward in done]
        ends = [StopReason.TERMINATED, *[StopReason.CONTEXT_LIMIT] * (len(ids) - 1)]
        facts = [EpisodeFacts() for _ in ids]
        metrics: list[dict[str, float]] = [{} for _ in ids]
        return GroupRows(name, mint, "trial", ids, kept, metrics, rows, ends, facts, self._row)

    def _plain(self, episode: EpisodeId, reward: float) -> Iterator[TrajectoryRow]:
        yield self._trajectory(episode, reward)

    def _segments(self, episode: EpisodeId, reward: float) -> Iterator[TrajectoryRow]:
        for role in ("policy", "critic"):
            for segment in range(2):
                yield self._trajectory(episode, reward, role=role, segment=segment)

    def _trajectory(self, episode: EpisodeId, reward: float, **facts: Any) -> TrajectoryRow:
        """A prompt, then two turns of sampled tokens, each answered by what nobody trains."""
        kinds, turns = [SpanKind.CONTROL] * 2, [-1] * 2
        for turn in range(2):
            sampled, answered = self._random.randint(1, 4), self._random.randint(1, 2)
            kinds += [SpanKind.SAMPLED] * sampled + [SpanKind.UNTRUSTED] * answered
            turns += [turn] * (sampled + answered)
        is_sampled = np.array(kinds) == SpanKind.SAMPLED
        versions = np.where(np.array(turns) == 0, self._stale, self._number - 1)
        counted = Counter(versions[is_sampled].tolist())
        columns = {
            "tokens": [self._random.randrange(_VOCABULARY) for _ in kinds],
            "kinds": kinds,
            "logprobs": np.where(is_sampled, -self._random.uniform(1, 3), 0.0),
            "versions": np.where(is_sampled, versions, -1),
            "turns": turns,
            TEACHER_LOGPROBS.name: np.where(is_sampled, -1.5, TEACHER_LOGPROBS.fill),
        }
        num_sampled = int(is_sampled.sum())
        facts["columns"] = (TEACHER_LOGPROBS,)
        meta = TrajectoryMeta(len(kinds), num_sampled, 2, reward, sorted(counted.items()), **facts)
        row = TrajectoryRow(episode, meta, PayloadRef("trial", 1, len(self._data), 0, 0))
        layout = (*COLUMNS.values(), TEACHER_LOGPROBS)
        self._data.append({c.name: np.array(columns[c.name], c.dtype).tobytes() for c in layout})
        return row
