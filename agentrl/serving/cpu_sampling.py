"""Sampling on a CPU: one random number per token instead of one per vocabulary entry.

SGLang draws by the Gumbel-max trick, with an exponential variate for every entry of the vocabulary,
which suits a GPU. Inverting the distribution function draws from the same distribution by a running
sum and one uniform variate.
"""

import torch

__all__ = ["sample_by_inversion"]


def sample_by_inversion(
    probs: torch.Tensor, generator: torch.Generator | None = None
) -> torch.Tensor:
    """One entry of each row of `probs` [batch, vocabulary], drawn by its weight: [batch] int64.

    The first entry whose running sum is over a uniform share of the total. An entry of weight zero
    adds nothing to the sum, so it is never the first. The sum is in double precision: the tail of a
    vocabulary would drown in the rounding of a single one.
    """
    sums = probs.cumsum(-1, dtype=torch.float64)
    share = torch.rand(len(probs), 1, dtype=torch.float64, generator=generator)
    return torch.searchsorted(sums, share * sums[:, -1:], right=True).squeeze(1)
