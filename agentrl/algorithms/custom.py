"""`--loss-type custom_loss`: a loss of the user's, on the advantages of an estimator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from agentrl.algorithms import slime_loss
from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.rows import Credit, MicroBatch, Outputs, Row
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows
from agentrl.user_code import Kind, Signature, hook

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Loss", "named_as", "with_loss", "without_flags"]

#: -> the loss of a micro-batch and what it measured.
_Call = Callable[[RunConfig, MicroBatch, Outputs], "tuple[Tensor, dict[str, Tensor]]"]


class Loss:
    """A function of the user's, called as the loss of an algorithm. `reads_logits`: of its
    micro-batch."""

    def __init__(self, function: Callable[..., Any], call: _Call, *, reads_logits: bool) -> None:
        functools.update_wrapper(self, function)
        self.reads_logits = reads_logits
        self._call = call

    def __call__(
        self, cfg: RunConfig, batch: MicroBatch, out: Outputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self._call(cfg, batch, out)


def _ours(function: Callable[..., Any]) -> Loss:
    def call(cfg: RunConfig, batch: MicroBatch, out: Outputs) -> Any:
        return function(batch, out.logprobs_T, out.entropy_T)

    return Loss(function, call, reads_logits=False)


def _slimes(function: Callable[..., Any]) -> Loss:
    return Loss(function, functools.partial(slime_loss.call, function), reads_logits=True)


#: Losses. Ours: `(micro_batch, logprobs_T, entropy_T) -> (loss, measures)`, called once for each
#: micro-batch. `micro_batch.columns` are those of `agentrl.learner.batch` (and `prox` from the
#: second step of an iteration on); the loss must carry its denominator, which `columns["weights"]`
#: has. `measures` holds `loss`, and names that begin with `custom_`: summed over micro-batches and
#: ranks, averaged over steps, they become the metrics `train/custom_...`. slime's: `slime_loss`.
LOSSES: Kind[Loss] = hook(
    "loss(micro_batch, logprobs_T, entropy_T)",
    [
        Signature(("micro_batch", "logprobs_T", "entropy_T"), _ours),
        Signature(("args", "batch", "logits", "sum_of_sample_mean"), _slimes, is_slimes=True),
    ],
    group="agentrl.losses",
    noun="loss",
    flag="--custom-loss-function-path",
    builtin={},
)


def with_loss(estimator: type[Algorithm], function: Loss) -> type[Algorithm]:
    """The estimator with another loss. Every episode is computed, whatever its advantage."""

    class CustomLoss(estimator):  # type: ignore[misc, valid-type]
        needs: Needs
        reward_levels = estimator.reward_levels

        def __init__(self, cfg: RunConfig, args: Any) -> None:
            super().__init__(cfg, args)
            self.needs = msgspec.structs.replace(
                self.needs, all_labels=True, later_prox=True, logits=function.reads_logits
            )

        def credit(self, group: GroupRows) -> Sequence[Credit]:
            return [Credit(credit.value) for credit in super().credit(group)]

        def teaches(self, reward: float) -> bool:
            return True

        def reduce(self, rows: Sequence[Row]) -> None:
            super().reduce(rows)
            for row in rows if function.reads_logits else ():
                row.columns["shares"] = np.full(len(row.tokens_L), row.share, np.float32)

        def loss(
            self, model: str, batch: MicroBatch, out: Outputs
        ) -> tuple[Tensor, dict[str, Tensor]]:
            if model != "policy":
                of_critic: tuple[Tensor, dict[str, Tensor]] = super().loss(model, batch, out)
                return of_critic
            return function(self.cfg, batch, out)

    CustomLoss.loss.__wrapped__ = function  # type: ignore[attr-defined]
    return named_as(estimator, CustomLoss)


def named_as(estimator: type[Algorithm], cls: type[Algorithm]) -> type[Algorithm]:
    """`cls`, which messages and checkpoints call as they call the estimator."""
    cls.__qualname__, cls.__module__ = estimator.__qualname__, estimator.__module__
    return cls


def without_flags(function: Callable[..., Any]) -> Callable[[RunConfig, Any], Any]:
    """A function that is given no flags, as one that is."""

    @functools.wraps(function)
    def called(cfg: RunConfig, given: Any) -> Any:
        return function(given)

    return called
