"""`get_sum_of_sample_mean`: how a loss in slime's signature adds up the numbers of its tokens.

Shape suffix: R = response tokens of a micro-batch, one sample after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentrl.errors import HookError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["get_sum_of_sample_mean"]


def get_sum_of_sample_mean(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    sample_denoms: Sequence[Tensor] | Tensor | None = None,
    calculate_per_token_loss: bool = False,
) -> Callable[[Tensor], Tensor]:
    """-> `reduce(x_R)`: the sum over samples of the masked sum of each, divided by its denominator
    (by default the tokens of its mask); under `calculate_per_token_loss` the masked sum. A number
    whose mask is 0 takes no part, and neither does its denominator; finite or not, its gradient
    is 0. What made it multiplies that 0 by its own slope: where that is infinite, as of an `exp`
    that overflows, the gradient before it is NaN, so bound what goes into it."""
    import torch

    del total_lengths
    weights_R = torch.cat([mask.float() for mask in loss_masks])
    is_in_R = weights_R != 0
    if not calculate_per_token_loss:
        if sample_denoms is None:
            sample_denoms = [mask.sum().clamp(min=1) for mask in loss_masks]
        counts = torch.as_tensor(response_lengths, device=weights_R.device)
        denoms = torch.stack([torch.as_tensor(each) for each in sample_denoms]).to(weights_R)
        denoms_R = denoms.repeat_interleave(counts, output_size=len(weights_R))
        weights_R = torch.where(is_in_R, weights_R / denoms_R, 0.0)

    def reduce(x_R: Tensor) -> Tensor:
        if x_R.shape != weights_R.shape:
            raise HookError(
                f"sum_of_sample_mean was given a tensor of shape {tuple(x_R.shape)}; "
                f"{tuple(weights_R.shape)} is wanted, a number for each token of the responses"
            )
        return (torch.where(is_in_R, x_R, 0.0) * weights_R).sum()

    return reduce
