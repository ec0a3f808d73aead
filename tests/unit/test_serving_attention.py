"""What makes an engine fast on a CPU: batched attention, sampling, and grouped prefills.

Attention is compared with a plain reference, over cache layouts as an engine makes them.
"""

import math
import random

import pytest
import torch

from agentrl.serving.cpu_attention import (
    MAX_BLOCK_TOKENS,
    MAX_MASK_ENTRIES,
    Workspace,
    attend,
    attend_with_sinks,
    plan_chunks,
)
from agentrl.serving.cpu_sampling import sample_by_inversion
from agentrl.serving.cpu_schedule import ENOUGH_WAITING, MAX_HELD_STEPS, PrefillGate

HEAD_SIZE, VALUE_SIZE = 16, 24


class Case:
    """Requests with `num_keys` tokens each, of which the last `num_queries` are asked for."""

    def __init__(
        self,
        num_keys: list[int],
        num_queries: list[int],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.num_keys, self.num_queries = num_keys, num_queries
        self.heads, self.kv_heads = heads, kv_heads
        num_slots = sum(num_keys) + 1
        self.keys = torch.randn(num_slots, kv_heads, HEAD_SIZE, generator=generator)
        self.values = torch.randn(num_slots, kv_heads, VALUE_SIZE, generator=generator)
        self.query = torch.randn(sum(num_queries), heads, HEAD_SIZE, generator=generator)
        # Row and slots of each request are scattered; what no request holds must not be read.
        self.keys[0] = self.values[0] = math.nan
        self.table = torch.zeros(len(num_keys) + 3, max(num_keys) + 5, dtype=torch.int32)
        self.requests = torch.randperm(len(num_keys) + 3, generator=generator)[: len(num_keys)]
        slots = torch.randperm(num_slots - 1, generator=generator) + 1
        for row, used in zip(self.requests, torch.split(slots, num_keys), strict=True):
            self.table[row, : len(used)] = used

    def batched(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        chunks = plan_chunks(self.table, self.requests, self.num_keys, self.num_queries, dtype)
        assert chunks is not None
        out = torch.full((len(self.query), self.heads, VALUE_SIZE), math.nan, dtype=dtype)
        attend(
            chunks,
            self.query.to(dtype),
            self.keys.to(dtype),
            self.values.to(dtype),
            out,
            scale=HEAD_SIZE**-0.5,
            workspace=Workspace(),
        )
        return out

    def reference(self) -> torch.Tensor:
        """One query and one head at a time, in double precision."""
        groups, outs, first = self.heads // self.kv_heads, [], 0
        for row, length, width in zip(self.requests, self.num_keys, self.num_queries, strict=True):
            for i in range(width):
                slots = self.table[row, : length - width + i + 1].long()
                for head in range(self.heads):
                    keys = self.keys[slots, head // groups].double()
                    scores = keys @ self.query[first + i, head].double() * HEAD_SIZE**-0.5
                    values = self.values[slots, head // groups].double()
                    outs.append(torch.softmax(scores, 0) @ values)
            first += width
        return torch.stack(outs).view(-1, self.heads, VALUE_SIZE).float()


def assert_equal(case: Case) -> None:
    torch.testing.assert_close(case.batched(), case.reference(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_decoding_equals_the_reference_over_random_lengths(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, rng.randint(3, 300)]) for _ in range(rng.randint(1, 40))]
    assert_equal(Case(lengths, [1] * len(lengths), seed=seed))


@pytest.mark.parametrize("seed", range(5))
def test_prefill_with_and_without_a_cached_prefix_equals_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    queries = [rng.choice([1, rng.randint(2, 40)]) for _ in range(rng.randint(1, 12))]
    lengths = [width + rng.choice([0, rng.randint(1, 60)]) for width in queries]
    assert_equal(Case(lengths, queries, seed=seed))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2)])
def test_every_ratio_of_query_heads_to_key_heads_equals_the_reference(
    heads: int, kv_heads: int
) -> None:
    assert_equal(Case([1, 7, 33], [1, 1, 1], heads=heads, kv_heads=kv_heads))
    assert_equal(Case([3, 7, 33], [3, 2, 20], heads=heads, kv_heads=kv_heads))


def test_requests_that_need_several_chunks_equal_the_reference() -> None:
    lengths = [MAX_BLOCK_TOKENS // 3 + i for i in range(7)] + [1, MAX_BLOCK_TOKENS + 1]
    assert_equal(Case(lengths, [1] * len(lengths)))


def test_half_precision_follows_the_reference() -> None:
    case = Case([5, 80, 1], [1, 30, 1])
    torch.testing.assert_close(
        case.batched(torch.bfloat16).float(), case.reference(), rtol=0.05, atol=0.05
    )


def test_no_chunk_is_over_the_limits_unless_one_request_alone_is() -> None:
    rng = random.Random(0)
    queries = [rng.choice([1, 26, 300]) for _ in range(200)]
    lengths = [width + rng.randint(0, 900) for width in queries]
    case = Case(lengths, queries)
    chunks = plan_chunks(case.table, case.requests, lengths, queries, torch.float32)
    assert chunks is not None
    assert sorted({i for chunk in chunks for i in chunk.tokens.tolist()}) == list(
        range(sum(queries))
    )
    for tokens, slots, mask in chunks:
        num, _, width, length = mask.shape
        assert (len(tokens), len(slots)) == (num * width, num * length)
        if num > 1:
            assert len(slots) <= MAX_BLOCK_TOKENS
            assert width == 1 or mask.numel() <= MAX_MASK_ENTRIES


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize("num", [1, 6])
def test_a_head_with_a_sink_gives_it_the_weight_of_one_more_key_without_a_value(
    num: int, window: int
) -> None:
    generator = torch.Generator().manual_seed(num)
    query, key, value = (
        torch.randn(size, heads, 8, generator=generator)
        for size, heads in ((num, 4), (9, 2), (9, 2))
    )
    sinks = torch.randn(4, generator=generator)
    found = attend_with_sinks(query, key, value, sinks, scale=0.5, window=window)
    for row in range(num):
        place = 9 - num + row
        seen = slice(max(0, place - window), place + 1)
        for head in range(4):
            scores = key[seen, head // 2] @ query[row, head] * 0.5
            weights = torch.cat([scores, sinks[head, None]]).softmax(0)[:-1]
            wanted = weights @ value[seen, head // 2]
            assert float((found[row, head] - wanted).abs().max()) < 1e-5


def test_a_prefill_whose_own_mask_is_over_the_limit_is_not_planned() -> None:
    long = math.isqrt(MAX_MASK_ENTRIES) + 1
    table, requests = torch.zeros(2, long, dtype=torch.int32), torch.arange(2)
    assert plan_chunks(table, requests, [9, long], [9, long], torch.float32) is None
    assert plan_chunks(table, requests, [9, long], [9, 1], torch.float32) is not None


def test_sampling_by_inversion_follows_the_weights() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    draws = sample_by_inversion(
        weights.expand(40_000, -1), generator=torch.Generator().manual_seed(0)
    )
    shares = torch.bincount(draws, minlength=6) / len(draws)
    assert shares[weights == 0].sum() == 0
    torch.testing.assert_close(shares, weights, rtol=0, atol=0.01)


def test_sampling_by_inversion_draws_each_row_from_its_own_weights() -> None:
    certain = torch.randint(2048, (300,), generator=torch.Generator().manual_seed(0))
    probs = torch.nn.functional.one_hot(certain, 2048).float()
    assert torch.equal(sample_by_inversion(probs), certain)


def test_a_lone_request_waits_a_few_decode_steps_and_no_longer() -> None:
    gate = PrefillGate()
    steps = [gate.holds(num_waiting=1, num_running=64) for _ in range(2 * (MAX_HELD_STEPS + 1))]
    assert steps == 2 * ([True] * MAX_HELD_STEPS + [False])


def test_a_prefill_is_not_held_where_enough_wait_or_nothing_runs() -> None:
    gate = PrefillGate()
    enough = math.ceil(64 * ENOUGH_WAITING)
    assert not gate.holds(num_waiting=enough, num_running=64)
    assert not gate.holds(num_waiting=1, num_running=0)
    assert not gate.holds(num_waiting=1, num_running=int(1 / ENOUGH_WAITING))
    assert not gate.holds(num_waiting=0, num_running=64)


def test_a_wait_begins_anew_after_a_prefill() -> None:
    gate = PrefillGate()
    assert gate.holds(1, 64)
    assert not gate.holds(64, 64)
    assert [gate.holds(1, 64) for _ in range(MAX_HELD_STEPS + 1)][-2:] == [True, False]
