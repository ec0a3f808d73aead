"""Experts that a rank of an engine on a CPU host has not."""

from typing import Any, NamedTuple

import torch

from agentrl.serving.cpu_experts import with_own_experts


class Chosen(NamedTuple):
    """As SGLang's top-k output."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor


def mixed(_layer: Any, x: torch.Tensor, chosen: Chosen, _settings: Any) -> torch.Tensor:
    """Expert n multiplies by n + 1; -1 is no expert, and SGLang counts none twice for a token."""
    assert chosen.topk_ids.min() >= 0
    assert all(len(set(row)) == len(row) for row in chosen.topk_ids.tolist())
    return x * (chosen.topk_weights * (chosen.topk_ids + 1)).sum(-1, keepdim=True)


def test_ranks_add_up_to_what_one_with_all_experts_says() -> None:
    x = torch.arange(15.0).view(3, 5)
    ids = torch.tensor([[0, 3], [2, 1], [3, 2]])  # the last token has none of the first rank's
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
    shares = [Chosen(weights, ids.masked_fill(ids // 2 != rank, -1)) for rank in range(2)]
    added = sum(with_own_experts(mixed, None, x, share, None) for share in shares)
    assert torch.equal(torch.as_tensor(added), mixed(None, x, Chosen(weights, ids), None))
