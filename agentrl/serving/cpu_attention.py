"""Attention of many requests at once over a paged KV cache, with plain torch operators.

A forward pass is planned once and every layer follows the plan. The plan sorts the requests by
length and cuts them into chunks; a chunk's keys and values are gathered into one padded block, and
one `scaled_dot_product_attention` serves all of its requests. Chunks are small, so that a block
stays in the processor's cache between its gather and its use, and so that neither padding nor the
masks can take more memory than `MAX_BLOCK_TOKENS` and `MAX_MASK_ENTRIES` allow. Decoding is the
case of one query per request.

Letters: B requests of a chunk, Q queries and L keys of its longest, H query heads, K key heads,
G = H / K, D head size, S slots of the cache, N query tokens of the forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = [
    "MAX_BLOCK_TOKENS",
    "MAX_MASK_ENTRIES",
    "Chunk",
    "Workspace",
    "attend",
    "attend_with_sinks",
    "plan_chunks",
]

#: Padded keys of a chunk (B * L). With cache rows of 64 floats 1k to 6k are as fast as each other,
#: and 13k takes a third longer.
MAX_BLOCK_TOKENS = 4096
#: Entries of a chunk's causal mask (B * Q * L), where its requests have more than one query.
MAX_MASK_ENTRIES = 1 << 20


class Chunk(NamedTuple):
    """Requests that are attended to together.

    tokens  [B * Q]     query rows among the N; a short request repeats its last one
    slots   [B * L]     cache slots of the keys; a short request repeats its first one
    mask    [B, 1, Q, L] what is added to the scores: 0, or -inf where a query must not look
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


class Workspace:
    """The blocks that keys and values are gathered into, kept so that their pages stay mapped."""

    def __init__(self) -> None:
        self._flat: list[torch.Tensor] = [torch.empty(0), torch.empty(0)]

    def gather(self, which: int, cache_SKD: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Cache rows [len(slots), K * D], in block `which` (0 or 1) until that one's next use."""
        rows = cache_SKD.flatten(1)
        size = len(slots) * rows.shape[1]
        flat = self._flat[which]
        if flat.numel() < size or flat.dtype != rows.dtype:
            flat = self._flat[which] = rows.new_empty(size)
        block = flat[:size].view(len(slots), rows.shape[1])
        return torch.index_select(rows, 0, slots, out=block)


def plan_chunks(
    table: torch.Tensor,
    requests: torch.Tensor,
    num_keys: Sequence[int],
    num_queries: Sequence[int],
    dtype: torch.dtype,
) -> list[Chunk] | None:
    """Chunks that cover all requests, or None where one request alone is over the mask's limit.

    table        [slots of requests, longest context]  cache slot of each token
    requests     [requests]  rows of `table`
    num_keys     tokens of each request, its queries included; its queries are the last of them
    num_queries  of each request, at least 1; their rows lie one request after the other
    """
    if any(q > 1 and q * k > MAX_MASK_ENTRIES for q, k in zip(num_queries, num_keys, strict=True)):
        return None
    queries, keys = torch.tensor(num_queries), torch.tensor(num_keys)
    first = queries.cumsum(0) - queries
    chunks = []
    for members in _grouped(num_keys, num_queries):
        row = torch.tensor(members)
        chunk_table = table.index_select(0, requests.index_select(0, row))
        chunks.append(_chunk(chunk_table, first[row], keys[row], queries[row], dtype))
    return chunks


def _grouped(num_keys: Sequence[int], num_queries: Sequence[int]) -> Iterator[list[int]]:
    """Requests of each chunk, the longest first: a chunk is as long as its first request."""
    order = sorted(range(len(num_keys)), key=lambda i: (num_queries[i], num_keys[i]), reverse=True)
    members: list[int] = []
    longest = width = 0
    for i in order:
        longest, count = max(longest, num_keys[i]), len(members) + 1
        over_mask = width > 1 and count * width * longest > MAX_MASK_ENTRIES
        if members and (over_mask or count * longest > MAX_BLOCK_TOKENS):
            yield members
            members, longest, width = [], num_keys[i], 0
        members.append(i)
        width = max(width, num_queries[i])
    if members:
        yield members


def _chunk(
    table: torch.Tensor,
    first: torch.Tensor,
    keys: torch.Tensor,
    queries: torch.Tensor,
    dtype: torch.dtype,
) -> Chunk:
    key = torch.arange(int(keys.max()))
    query = torch.arange(int(queries.max())).minimum(queries[:, None] - 1)
    table = table[:, : len(key)]
    # A slot past the end of a request may hold anything, even a NaN, which no mask can silence.
    slots = torch.where(key < keys[:, None], table, table[:, :1])
    position = (keys - queries)[:, None] + query
    hidden = key > position[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return Chunk((first[:, None] + query).flatten(), slots.flatten(), mask.unsqueeze(1))


def attend(
    chunks: Sequence[Chunk],
    query_NHD: torch.Tensor,
    keys_SKD: torch.Tensor,
    values_SKD: torch.Tensor,
    out_NHD: torch.Tensor,
    *,
    scale: float,
    workspace: Workspace,
    core: Callable[..., Any] = scaled_dot_product_attention,
) -> None:
    """Write the causal attention of every query into `out_NHD`, as `core` computes it.

    The G query heads that share a key head are so many more queries of it: keys and values are not
    repeated.
    """
    heads, kv_heads = query_NHD.shape[1], keys_SKD.shape[1]
    groups = heads // kv_heads
    for tokens, slots, mask in chunks:
        num, _, width, length = mask.shape
        key = workspace.gather(0, keys_SKD, slots).view(num, length, kv_heads, -1)
        value = workspace.gather(1, values_SKD, slots).view(num, length, kv_heads, -1)
        query = query_NHD.index_select(0, tokens).view(num, width, kv_heads, groups, -1)
        query = query.permute(0, 2, 3, 1, 4).reshape(num, kv_heads, groups * width, -1)
        if width > 1:
            mask = mask.repeat(1, 1, groups, 1)
        out = core(query, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask, scale=scale)
        out = out.reshape(num, kv_heads, groups, width, -1).permute(0, 3, 1, 2, 4)
        out_NHD.index_copy_(0, tokens, out.reshape(num * width, heads, -1))


def attend_with_sinks(
    query_NHD: torch.Tensor,
    keys_LKD: torch.Tensor,
    values_LKD: torch.Tensor,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    window: int,
) -> torch.Tensor:
    """Attention [N, H, D] of the newest N tokens of a request over its newest L: each sees
    itself and `window` tokens before, and has a sink in each head, a score [H] without a value.
    Computed in float32."""
    num, heads, _ = query_NHD.shape
    length, kv_heads, _ = keys_LKD.shape
    grouped = query_NHD.reshape(num, kv_heads, heads // kv_heads, -1)
    scores = torch.einsum("nkgd,lkd->kgnl", grouped.float(), keys_LKD.float()) * scale
    distance = torch.arange(length - num, length)[:, None] - torch.arange(length)
    scores = scores.masked_fill((distance < 0) | (distance > window), float("-inf"))
    sink = sinks_H.float().view(kv_heads, -1, 1, 1)
    weights = (scores - torch.logaddexp(scores.logsumexp(-1, keepdim=True), sink)).exp()
    out = torch.einsum("kgnl,lkd->nkgd", weights.to(values_LKD.dtype), values_LKD)
    return out.reshape(num, heads, -1)
