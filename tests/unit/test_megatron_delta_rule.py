"""The gated delta rule in chunks is that of tokens one by one, for several packed sequences."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from agentrl.learner.megatron.delta_rule import CHUNK, chunks_of, cut, delta_rule

HEADS, KEY, VALUE = 3, 8, 5
Columns = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@pytest.fixture
def columns() -> Callable[[int], Columns]:
    """Queries, keys, values, decays and rates of writing of so many tokens."""

    def make(total: int) -> Columns:
        generator = torch.Generator().manual_seed(total)
        query, key = (torch.randn(total, HEADS, KEY, generator=generator) for _ in range(2))
        value = torch.randn(total, HEADS, VALUE, generator=generator)
        decay, beta = (torch.rand(total, HEADS, generator=generator) for _ in range(2))
        query, key = (normalize(x, dim=-1) for x in (query, key))
        # Slow: what a chunk wrote is still there two chunks later.
        return query, key, value, -0.02 * decay, beta

    return make


def one_by_one(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The rule as its paper writes it, in float64, for one sequence."""
    query, key, value, decay, beta = (x.double() for x in (query, key, value, decay, beta))
    state = torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64)
    out = []
    for t in range(len(query)):
        state = state * decay[t].exp()[:, None, None]
        held = torch.einsum("hkv,hk->hv", state, key[t])
        state = state + torch.einsum("hk,hv->hkv", key[t], (value[t] - held) * beta[t][:, None])
        out.append(torch.einsum("hkv,hk->hv", state, query[t]) * KEY**-0.5)
    return torch.stack(out)


def alone(packed: Columns, lengths: list[int]) -> Tensor:
    """Each sequence by itself."""
    query, key, value, decay, beta = (torch.split(x, lengths) for x in packed)
    parts = zip(query, key, value, decay, beta, strict=True)
    return torch.cat([one_by_one(*part) for part in parts])


@pytest.mark.parametrize(
    "lengths",
    [[1], [CHUNK], [CHUNK + 1], [7, 3 * CHUNK + 5, 1, CHUNK, 200]],
    ids=str,
)
def test_chunks_of_packed_sequences_answer_as_tokens_one_by_one(
    lengths: list[int], columns: Callable[[int], Columns]
) -> None:
    packed = columns(sum(lengths))
    found = delta_rule(*packed, cut(lengths, torch.device("cpu")))
    assert float((found - alone(packed, lengths)).abs().max()) < 1e-6


def test_gradients_are_those_of_tokens_one_by_one(columns: Callable[[int], Columns]) -> None:
    lengths = [70, 9]
    mine, theirs = columns(79), columns(79)
    for x in (*mine, *theirs):
        x.requires_grad_()
    weight = torch.randn(79, HEADS, VALUE, generator=torch.Generator().manual_seed(1))
    found = delta_rule(*mine, cut(lengths, torch.device("cpu")))
    torch.autograd.backward((found * weight).sum())
    torch.autograd.backward((alone(theirs, lengths) * weight).sum())
    for one, other in zip(mine, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert float((one.grad - other.grad).abs().max()) < 1e-5


def test_lengths_are_read_once_for_all_layers() -> None:
    packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 3, 8], dtype=torch.int32))
    chunks = chunks_of(packed)
    assert chunks.within_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert chunks_of(packed) is chunks
