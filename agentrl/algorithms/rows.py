"""What an algorithm sees of an iteration: a replica's rows, then micro-batches of them.

Position t of a sequence predicts token t + 1: every column stands under the label that it
describes, and means nothing at the last position.

Shape suffixes: L = tokens of one trajectory, T = packed tokens of one micro-batch, K = trained
tokens of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.columns import CACHE_VERSIONS, COLUMNS, EXCLUDED
from agentrl.errors import DataError
from agentrl.types import EpisodeFacts, EpisodeId, GroupRows, TrajectoryRow

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.algorithms.scored_logits import Logits

__all__ = [
    "LOG_RATIO_LIMIT",
    "TAKEN",
    "TEMPERATURES",
    "Credit",
    "Level",
    "LossFn",
    "MicroBatch",
    "Outputs",
    "Row",
    "Trained",
    "facts_of",
    "first_turns",
    "num_turns",
]

#: Where parts of a mixture are sampled at temperatures of their own, that of each token: float32.
TEMPERATURES = "temperatures"
#: Columns that rows have without being asked, or that a pass or the default advantages give them:
#: no optional column of a trajectory is called so.
TAKEN = frozenset(
    {"weights", "mask", "sampled", "scored", "mu", "ages", "turns", "demonstrated", "prox"}
    | {"cached", "reference", "teacher", "values", "advantages", "returns", "kept", "pg_weights"}
    | {"shares", TEMPERATURES, CACHE_VERSIONS.name, EXCLUDED.name, *COLUMNS}
)
#: Log-ratios are clamped to +- this before exp, so that no ratio overflows.
LOG_RATIO_LIMIT = 20.0
#: What a ratio is of: a token, its whole sequence (the product), or the mean of these.
Level = Literal["token", "sequence", "geometric"]


class Credit(msgspec.Struct, frozen=True):
    """What an episode earned: one number, one for each of its turns, counted through the segments
    of a role (`num_turns`), or one by each name under which the policy played. `skip`: what is 0
    has no gradient, so its trajectories are counted and not computed."""

    value: float | tuple[float, ...] | dict[str, float]
    skip: bool = False

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it."""
        if isinstance(self.value, dict):
            return tuple(self.value.values())
        return self.value if isinstance(self.value, tuple) else (self.value,)

    def of(self, name: str) -> Credit:
        """That of a trajectory: of what the policy was called there. Raises DataError where it has
        none."""
        if not isinstance(self.value, dict):
            return self
        if name not in self.value:
            raise DataError(f"credit is given to {[*self.value]} and not to {name!r}, which played")
        return Credit(self.value[name], skip=self.skip and self.value[name] == 0)


def facts_of(group: GroupRows) -> list[EpisodeFacts]:
    """Of each episode. Raises DataError where they are those of others."""
    facts = group.facts or [EpisodeFacts()] * len(group.episodes)
    if len(facts) != len(group.episodes):
        raise DataError(
            f"group {group.group} has {len(group.episodes)} episodes and facts of {len(facts)}: "
            "the lease header is damaged"
        )
    return facts


def first_turns(group: GroupRows) -> list[int]:
    """For each trajectory, how many turns the earlier segments of its episode and role have."""
    passed: Counter[tuple[EpisodeId, str]] = Counter()
    found = [0] * len(group.trajectories)
    for place, row in sorted(enumerate(group.trajectories), key=lambda each: each[1].meta.segment):
        found[place] = passed[row.episode, row.meta.role]
        passed[row.episode, row.meta.role] += row.meta.num_turns
    return found


def num_turns(group: GroupRows) -> list[int]:
    """For each episode, how many turns it has: those of the role that has most."""
    most = dict.fromkeys(group.episodes, 0)
    for row, first in zip(group.trajectories, first_turns(group), strict=True):
        most[row.episode] = max(most[row.episode], first + row.meta.num_turns)
    return [most[episode] for episode in group.episodes]


@dataclass(slots=True)
class Row:
    """One trajectory that this replica trains. `credit`: its own, never by name. `columns`: of
    length L, by name; those of `agentrl.learner.batch`, those that the algorithm needs, of shape
    (L, ...), those of the passes, and what the algorithm adds. `first_turn`: how many turns the
    earlier segments of its episode and role have; column `turns` begins anew in each segment.
    `share`: what a number for the whole row counts for in the loss of its step, where tokens are
    not averaged as the flags say."""

    trajectory: TrajectoryRow
    credit: Credit
    tokens_L: npt.NDArray[np.int32]
    columns: dict[str, npt.NDArray[Any]]
    first_turn: int = 0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """T packed tokens of one or more whole sequences on this rank.

    tokens_T: int64 token ids. labels_T: int64, the next token of the same sequence; 0 at the last
    position of a sequence (whose log-probability means nothing). positions_T: int64 position in
    its own sequence. cu_seqlens: int32 [num_sequences + 1], starts of the sequences and T.
    columns: tensors of shape (T, ...) aligned with `labels_T`, by name. Only the loss reads them,
    but for two. `scored` (bool): where it is false the loss will not read log-probability and
    entropy, and a backend may give 0; without it all are scored. `temperatures`: what a backend
    divides the logits of each token by; without it that is the temperature of the run.
    """

    tokens_T: Tensor
    labels_T: Tensor
    positions_T: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    columns: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a model makes of a micro-batch: a policy, log-probabilities of the labels, and
    entropies; a critic, under each label the value of the state in which it was chosen (what came
    before it), and the other two are empty. `logits`: makes those of a policy, for a loss of which
    `Needs.logits` says that it reads them; for others it raises DataError."""

    logprobs_T: Tensor
    entropy_T: Tensor
    values_T: Tensor | None = None
    logits: Callable[[], Logits] | None = None

    @classmethod
    def of_critic(cls, values_T: Tensor) -> Outputs:
        """Of a critic."""
        nothing = values_T.new_empty(0)
        return cls(nothing, nothing, values_T)


@dataclass(frozen=True, slots=True)
class Trained:
    """The K trained tokens of a micro-batch, by their log-probabilities.

    logprobs_K: of the current policy. prox_K: of the one that the ratio of a policy gradient is
    taken to: that at the start of the iteration, or mu (`--use-rollout-logprobs`). mu_K: of the
    engine that sampled them. start_K: of the policy whose distance from mu is corrected: that at
    the start of the iteration, or under `--use-rollout-logprobs` the current one; no gradient.
    sequences_K: which of the `num_sequences` trajectory segments each token is of.
    """

    logprobs_K: Tensor
    prox_K: Tensor
    mu_K: Tensor
    start_K: Tensor
    advantages_K: Tensor
    sequences_K: Tensor
    num_sequences: int

    def sequence_sum(self, values_K: Tensor) -> Tensor:
        """For each token, the sum over its sequence."""
        totals_S = values_K.new_zeros(self.num_sequences)
        return totals_S.index_add(0, self.sequences_K, values_K)[self.sequences_K]

    def sequence_mean(self, values_K: Tensor) -> Tensor:
        """For each token, the mean over its sequence."""
        return self.sequence_sum(values_K) / self.sequence_sum(values_K.detach() * 0 + 1)

    def engine_log_ratio(self, level: Level) -> Tensor:
        """`log start - log mu` of each token, or the sum or the mean of these over its sequence,
        clamped to +-20, so that no ratio overflows."""
        gap_K = self.start_K - self.mu_K
        if level != "token":
            gap_K = self.sequence_sum(gap_K) if level == "sequence" else self.sequence_mean(gap_K)
        return gap_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


if TYPE_CHECKING:
    #: -> scalar loss, already divided by its global denominator; what it measured, by metric name
    #: without `train/` (see `agentrl.learner.measures`).
    LossFn = Callable[[MicroBatch, Outputs], tuple[Tensor, dict[str, Tensor]]]
else:
    LossFn = Callable[..., Any]
