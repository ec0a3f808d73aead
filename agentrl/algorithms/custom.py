"""`--loss-type custom_loss`: a loss of the user's, on the advantages of an estimator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.rows import Credit, MicroBatch, Outputs
from agentrl.config.run import RunConfig
from agentrl.types import GroupRows
from agentrl.user_code import Kind, Signature, hook

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "named_as", "with_loss", "without_flags"]

_SLIMES = Signature(("args", "batch", "logits", "sum_of_sample_mean"), is_slimes=True)
_NO_LOGITS = (
    "slime's signature, with logits: here they are not kept, and a loss is given the "
    "log-probability and the entropy of each label; for sum_of_sample_mean(x) write "
    '(x * columns["weights"])[columns["mask"]].sum(), of micro_batch.columns'
)

#: Losses: `(micro_batch, logprobs_T, entropy_T) -> (loss, measures)`, called once for each
#: micro-batch. `micro_batch.columns` are those of `agentrl.learner.batch` (and `prox` from the
#: second step of an iteration on); the loss must carry its denominator, which `columns["weights"]`
#: has. `measures` holds `loss`, and names that begin with `custom_`: summed over micro-batches and
#: ranks, averaged over steps, they become the metrics `train/custom_...`.
LOSSES: Kind[Callable[..., Any]] = hook(
    "loss(micro_batch, logprobs_T, entropy_T)",
    [Signature(("micro_batch", "logprobs_T", "entropy_T"))],
    refused=((_SLIMES, _NO_LOGITS),),
    group="agentrl.losses",
    noun="loss",
    flag="--custom-loss-function-path",
    builtin={},
)


def with_loss(estimator: type[Algorithm], function: Callable[..., Any]) -> type[Algorithm]:
    """The estimator with another loss. Every episode is computed, whatever its advantage."""

    class CustomLoss(estimator):  # type: ignore[misc, valid-type]
        needs: Needs
        reward_levels = estimator.reward_levels

        def __init__(self, cfg: RunConfig, args: Any) -> None:
            super().__init__(cfg, args)
            self.needs = msgspec.structs.replace(self.needs, all_labels=True, later_prox=True)

        def credit(self, group: GroupRows) -> Sequence[Credit]:
            return [Credit(credit.value) for credit in super().credit(group)]

        def teaches(self, reward: float) -> bool:
            return True

        def loss(
            self, model: str, batch: MicroBatch, out: Outputs
        ) -> tuple[Tensor, dict[str, Tensor]]:
            if model != "policy":
                of_critic: tuple[Tensor, dict[str, Tensor]] = super().loss(model, batch, out)
                return of_critic
            found: tuple[Tensor, dict[str, Tensor]] = function(batch, out.logprobs_T, out.entropy_T)
            return found

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
