"""What holds whatever a loss computes: it trains no label that was sampled and is not in the mask.

Such a label is too old, or was left out. Nothing that comes of it has a gradient, so the bound on
staleness does not depend on the loss. Labels that nobody sampled are free for auxiliary terms.

Shape suffixes: T = packed tokens of a micro-batch, V = a rank's share of the vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.errors import DataError

__all__ = ["HeldLoss", "untrained", "without_logits"]


@dataclass(frozen=True, slots=True)
class HeldLoss:
    """`loss_fn`, given outputs without a gradient at labels that are `untrained`."""

    loss_fn: LossFn

    def __call__(self, batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        return self.loss_fn(batch, _held(out, untrained(batch)))


def untrained(batch: MicroBatch) -> Tensor:
    """[T], bool: labels that were sampled and are not in the mask."""
    mask_T = batch.columns["mask"]
    return batch.columns.get("sampled", mask_T) & ~mask_T


def without_logits(loss_fn: LossFn) -> LossFn:
    """`loss_fn` of an algorithm that declared no logits: asking for them raises DataError."""

    def refuse() -> Logits:
        raise DataError(
            "the loss reads logits, and `needs` does not say so: declare needs.logits, which also "
            "counts their memory and refuses layouts without them"
        )

    return lambda batch, out: loss_fn(batch, replace(out, logits=refuse))


def _held(out: Outputs, untrained_T: Tensor) -> Outputs:
    def stopped(score_T: Tensor) -> Tensor:
        return torch.where(untrained_T, score_T.detach(), score_T)

    if out.values_T is not None:
        return replace(out, values_T=stopped(out.values_T))
    makes = None if out.logits is None else _held_logits(out.logits, untrained_T)
    return Outputs(stopped(out.logprobs_T), stopped(out.entropy_T), logits=makes)


def _held_logits(makes: Callable[[], Logits], untrained_T: Tensor) -> Callable[[], Logits]:
    """Their gradient is cut and not they, which would be a second copy; so it also holds where the
    loss writes to them."""

    def stop(grad_TV: Tensor) -> Tensor:
        return grad_TV.masked_fill(untrained_T[:, None], 0)

    def make() -> Logits:
        logits = makes()
        if logits.logits_TV.requires_grad:
            logits.logits_TV.register_hook(stop)  # type: ignore[no-untyped-call]
        return logits

    return make
