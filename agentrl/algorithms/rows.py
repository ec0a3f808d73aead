"""What an algorithm sees of an iteration: a replica's rows, then micro-batches of them.

Position t of a sequence predicts token t + 1: every column stands under the label that it
describes, and means nothing at the last position.

Shape suffixes: L = tokens of one trajectory, T = packed tokens of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.columns import COLUMNS, EXCLUDED
from agentrl.types import TrajectoryRow

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TAKEN", "Credit", "LossFn", "MicroBatch", "Outputs", "Row"]

#: Columns that rows have without being asked, or that a pass or the default advantages give them:
#: no optional column of a trajectory is called so.
TAKEN = frozenset(
    {"weights", "mask", "sampled", "scored", "mu", "ages", "turns", "demonstrated", "prox"}
    | {"reference", "advantages", EXCLUDED.name, *COLUMNS}
)


class Credit(msgspec.Struct, frozen=True):
    """What an episode earned: one number, or one for each of its turns. `skip`: it has no gradient,
    so its trajectories are counted and not computed."""

    value: float | tuple[float, ...]
    skip: bool = False


@dataclass(slots=True)
class Row:
    """One trajectory that this replica trains. `columns`: of length L, by name; those of
    `agentrl.learner.batch`, those that the algorithm needs, of shape (L, ...), those of the passes,
    and what the algorithm adds."""

    trajectory: TrajectoryRow
    credit: Credit
    tokens_L: npt.NDArray[np.int32]
    columns: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """T packed tokens of one or more whole sequences on this rank.

    tokens_T: int64 token ids. labels_T: int64, the next token of the same sequence; 0 at the last
    position of a sequence (whose log-probability means nothing). positions_T: int64 position in
    its own sequence. cu_seqlens: int32 [num_sequences + 1], starts of the sequences and T.
    columns: tensors of shape (T, ...) aligned with `labels_T`, by name. Only the loss reads them,
    but for `scored` (bool): where it is false the loss will not read log-probability and entropy,
    and a backend may give 0. Without it all are scored.
    """

    tokens_T: Tensor
    labels_T: Tensor
    positions_T: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    columns: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the model makes of a micro-batch: log-probabilities of the labels, and entropies."""

    logprobs_T: Tensor
    entropy_T: Tensor


if TYPE_CHECKING:
    #: -> scalar loss, already divided by its global denominator; what it measured, by metric name
    #: without `train/` (see `agentrl.learner.measures`).
    LossFn = Callable[[MicroBatch, Outputs], tuple[Tensor, dict[str, Tensor]]]
else:
    LossFn = Callable[..., Any]
