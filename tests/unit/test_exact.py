"""Sums without an order: no bit of a token's result depends on what it is computed with."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from agentrl import exact
from agentrl.serving.cpu_attention import Workspace, attend, plan_chunks

HEADS, GROUPS, DIM = 4, 2, 32
SCALE = DIM**-0.5


def random(*shape: int) -> Tensor:
    """Numbers of very different sizes, by row."""
    return torch.randn(shape) * torch.randn(*shape[:-1], 1).exp()


def test_a_product_has_the_same_bits_in_every_order_company_and_layout() -> None:
    x, weight = random(300, 128), random(768, 128)
    whole = exact.product(x, weight)
    order = torch.randperm(128)
    assert torch.equal(exact.product(x[:, order], weight[:, order]), whole)
    for rows, columns in ((slice(7, 8), slice(0, 768)), (slice(0, 49), slice(100, 613))):
        assert torch.equal(exact.product(x[rows], weight[columns]), whole[rows, columns])
    strided = x.t().contiguous().t()
    assert torch.equal(exact.product(strided[:, None], weight), whole[:, None])


def test_terms_that_cancel_leave_nothing_in_any_order() -> None:
    """Float32 hides the last bits of a sum in float64; of a sum that is 0 it hides none."""
    x, weight = random(30, 65), random(70, 65)
    order = torch.randperm(130)
    terms, opposite = torch.cat([x, x], 1), torch.cat([weight, -weight], 1)
    assert not exact.product(terms[:, order], opposite[:, order]).any()
    assert (terms.double()[:, order] @ opposite.double()[:, order].t()).any()

    query, key, value = random(2, 9, DIM), random(2, 65, DIM), torch.randn(2, 65, DIM).exp()
    keys, values = torch.cat([key, key], 1)[:, order], torch.cat([value, -value], 1)[:, order]
    found = exact.attention(query, keys, values, attn_mask=torch.zeros(9, 130), scale=SCALE)
    assert not found.any()


def test_a_long_sum_of_large_terms_has_room() -> None:
    """All of one sign first: half of the sum is far longer than any of its terms."""
    x, weight = torch.rand(30, 513) + 1, torch.rand(70, 513) + 1
    terms, opposite = torch.cat([x, x], 1), torch.cat([weight, -weight], 1)
    assert not exact.product(terms, opposite).any()


def test_a_product_of_torch_has_not() -> None:
    x, weight = random(300, 128), random(768, 128)
    order = torch.randperm(128)
    assert not torch.equal(x[:, order] @ weight[:, order].t(), x @ weight.t())


@pytest.mark.parametrize(("width", "coarser"), [(1, 1), (3, 2), (128, 2), (4096, 16)])
def test_a_product_is_nearly_as_near_as_one_in_float32(width: int, coarser: int) -> None:
    x, weight = torch.randn(50, width), torch.randn(70, width)
    right = x.double() @ weight.double().t()
    off, usual = (
        (found - right).abs().max() for found in (exact.product(x, weight), x @ weight.t())
    )
    assert off <= coarser * usual


def test_rows_of_zeros_and_of_tiny_and_huge_numbers_are_what_they_are() -> None:
    x = torch.tensor([[0.0, 0.0], [1e-44, 3e-42], [3e38, -1e38], [1e-20, 1.0]])
    assert torch.equal(exact.product(x, torch.eye(2))[:3], x[:3])
    assert not exact.product(torch.tensor([[torch.inf, 1.0]]), torch.ones(1, 2)).isfinite().any()


def test_engines_batches_and_a_packed_sequence_give_the_same_attention() -> None:
    """Ragged requests: some decode, some prefill behind a reused prefix; a cache in disorder, and
    rubbish in slots that are free."""
    lengths, queries = [5, 130, 131, 77, 1], [1, 130, 1, 60, 1]
    sequences = [(random(n, HEADS, DIM), *random(2, n, GROUPS, DIM)) for n in lengths]
    slots = torch.split(torch.randperm(400)[: sum(lengths)], lengths)
    keys, values = (torch.full((400, GROUPS, DIM), 1e30) for _ in range(2))
    table = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, (place, (_, key, value)) in enumerate(zip(slots, sequences, strict=True)):
        keys[place], values[place], table[row, : len(place)] = key, value, place
    asked = [query[-num:] for (query, _, _), num in zip(sequences, queries, strict=True)]
    chunks = plan_chunks(table, torch.arange(len(lengths)), lengths, queries, torch.float32)
    assert chunks is not None
    found = torch.empty(sum(queries), HEADS, DIM)
    attend(
        chunks,
        torch.cat(asked),
        keys,
        values,
        found,
        scale=SCALE,
        workspace=Workspace(),
        core=exact.attention,
    )
    learner = [exact.causal(query, key, value, SCALE) for query, key, value in sequences]
    for own, whole, num in zip(torch.split(found, queries), learner, queries, strict=True):
        assert torch.equal(own, whole[-num:])


def test_blocks_of_a_long_prefill_change_no_bit() -> None:
    query, key, value = random(90, HEADS, DIM), random(200, GROUPS, DIM), random(200, GROUPS, DIM)
    whole = exact.causal(query, key, value, SCALE)
    blocks = exact.causal(query, key, value, SCALE, block_elements=7 * 200)
    assert torch.equal(blocks, whole)


def test_the_order_of_keys_changes_no_bit_of_attention() -> None:
    query, key, value = random(2, 9, DIM), random(2, 131, DIM), random(2, 131, DIM)
    mask = torch.zeros(9, 131).masked_fill_(torch.rand(9, 131) < 0.3, -torch.inf)
    order = torch.randperm(131)
    plain, mixed = (
        exact.attention(query, key[:, o], value[:, o], attn_mask=mask[:, o], scale=SCALE)
        for o in (slice(None), order)
    )
    assert torch.equal(plain, mixed)


def test_attention_is_as_near_as_torchs() -> None:
    query, key, value = (torch.randn(2, 40, DIM) for _ in range(3))
    mask = torch.full((40, 40), -torch.inf).triu_(1)
    right, usual = (
        scaled_dot_product_attention(query.to(d), key.to(d), value.to(d), mask.to(d), scale=SCALE)
        for d in (torch.float64, torch.float32)
    )
    found = exact.attention(query, key, value, attn_mask=mask, scale=SCALE)
    assert (found - right).abs().max() <= 2 * (usual - right).abs().max()


def test_norms_activations_and_logprobs_are_those_of_each_row_alone() -> None:
    x, weight = random(37, 96), torch.randn(96)
    labels, heat = torch.randint(0, 96, (37,)), torch.tensor(0.7)
    ways: tuple[Callable[[slice], Tensor], ...] = (
        lambda rows: exact.rms_norm(x[rows], weight, 1e-6),
        lambda rows: exact.silu(x[rows]),
        lambda rows: exact.logprobs(x[rows], labels[rows], heat),
    )
    order = torch.randperm(96)
    back = order.argsort()
    assert torch.equal(
        exact.rms_norm(x[:, order], weight[order], 1e-6)[:, back], ways[0](slice(0, 37))
    )
    assert torch.equal(exact.logprobs(x[:, order], back[labels], heat), ways[2](slice(0, 37)))
    for way in ways:
        whole = way(slice(0, 37))
        assert all(torch.equal(way(slice(i, i + 1)), whole[i : i + 1]) for i in range(37))


def test_norms_activations_and_logprobs_are_as_near_as_torchs() -> None:
    x, weight, labels = torch.randn(37, 96) * 4, torch.randn(96), torch.randint(0, 96, (37,))
    wide = x.double()
    log_p = torch.log_softmax(wide / 0.7, -1).gather(1, labels[:, None])[:, 0]
    pairs = (
        (exact.rms_norm(x, weight, 1e-6), rms_norm(wide, (96,), weight.double(), 1e-6)),
        (exact.silu(x), silu(wide)),
        (exact.logprobs(x, labels, torch.tensor(0.7, dtype=torch.float64)), log_p),
    )
    for found, right in pairs:
        torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=1e-6)
