"""The gated delta rule over packed sequences, in plain torch: a state for each value head that
forgets by a factor, corrects what it holds for a key by `beta`, and answers a query.

    S_t = exp(decay_t) S_t-1 + beta_t k_t (v_t - exp(decay_t) S_t-1^T k_t)^T,   o_t = S_t^T q_t

Gated Delta Networks, https://arxiv.org/abs/2412.06464, section 3. Sequences are cut into chunks of
64. Within a chunk all corrections are one triangular system, solved for all chunks at once; the
state then goes from chunk to chunk, for all sequences at once. Each operation is that of
transformers and in its order: a random model makes much of a last bit.

T = packed tokens, N = chunks, C = tokens of a chunk, H = value heads, K and V = widths of a key and
of a value.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["CHUNK", "Chunks", "chunks_of", "cut", "delta_rule"]

CHUNK = 64


class Chunks(NamedTuple):
    """Packed sequences in chunks: the first chunks of all sequences, then all second ones, and so
    on, longer sequences before shorter ones.

    tokens_NC   position among the T of each token of a chunk; T where there is none
    places_T    where each token stands among the N * C
    within_T    position in its sequence
    counts      chunks of each turn: how many sequences are that long
    """

    tokens_NC: Tensor
    places_T: Tensor
    within_T: Tensor
    counts: list[int]


def chunks_of(packed: Any) -> Chunks:
    """Of megatron-core's packed sequences, to which they are made once: all layers take the same,
    and lengths are read from the device."""
    found: Chunks | None = getattr(packed, "_chunks", None)
    if found is None:
        ends: Tensor = packed.cu_seqlens_q
        found = cut(ends.diff().tolist(), ends.device)
        packed._chunks = found
    return found


def cut(lengths: list[int], device: torch.device) -> Chunks:
    """Sequences of those lengths, none of them empty, in chunks."""
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    total, longest = starts.pop(), max(lengths)
    rows: list[Tensor] = []
    counts: list[int] = []
    for first in range(0, longest, CHUNK):
        long_enough = [i for i in order if lengths[i] > first]
        counts.append(len(long_enough))
        for i in long_enough:
            row = torch.arange(first, first + CHUNK)
            rows.append(torch.where(row < lengths[i], starts[i] + row, total))
    tokens_NC = torch.stack(rows)
    places_T = torch.empty(total + 1, dtype=torch.int64)
    places_T[tokens_NC.view(-1)] = torch.arange(tokens_NC.numel())
    within_T = torch.cat([torch.arange(n) for n in lengths])
    return Chunks(tokens_NC.to(device), places_T[:total].to(device), within_T.to(device), counts)


def delta_rule(
    query_THK: Tensor,
    key_THK: Tensor,
    value_THV: Tensor,
    decay_TH: Tensor,
    beta_TH: Tensor,
    chunks: Chunks,
) -> Tensor:
    """What the states answer, float32 [T, H, V]. Queries and keys are of length 1, `decay_TH` is at
    most 0."""
    query, key, value = (_chunked(x, chunks) for x in (query_THK, key_THK, value_THV))
    decay, beta = (_chunked(x[..., None], chunks)[..., 0] for x in (decay_TH, beta_TH))
    query = query * query.shape[-1] ** -0.5
    written, key_beta = value * beta[..., None], key * beta[..., None]
    decay = decay.cumsum(-1)  # [N, H, C]: since the chunk began
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=key.device).triu(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()
    system = key_beta @ key.mT * between
    seen = query @ key.mT * between
    key_decayed = key_beta * decay.exp()[..., None]
    new, read = (
        torch.linalg.solve_triangular(system, side, upper=False, unitriangular=True)
        for side in (written, key_decayed)
    )
    query = query * decay.exp()[..., None]
    key = key * (decay[..., -1:] - decay).exp()[..., None]
    out_NHCV = torch.cat(
        [*_scan(query, key, new, read, seen, decay[..., -1].exp()[..., None, None], chunks.counts)]
    )
    return out_NHCV.transpose(1, 2).flatten(0, 1)[chunks.places_T]


def _chunked(x_TH: Tensor, chunks: Chunks) -> Tensor:
    """[N, H, C, width] in float32, 0 where there is no token."""
    padded = pad(x_TH.float(), (0, 0, 0, 0, 0, 1))
    return padded[chunks.tokens_NC].transpose(1, 2).contiguous()


def _scan(
    query: Tensor,
    key: Tensor,
    new: Tensor,
    read: Tensor,
    seen: Tensor,
    kept: Tensor,
    counts: list[int],
) -> Iterator[Tensor]:
    """Answers [chunks, H, C, V] of each turn, from states [sequences, H, K, V]."""
    state = new.new_zeros(counts[0], new.shape[1], key.shape[-1], new.shape[-1])
    first = 0
    for count in counts:
        now = slice(first, first + count)
        state = state[:count]
        values = new[now] - read[now] @ state
        yield query[now] @ state + seen[now] @ values
        state = state * kept[now] + key[now].mT @ values
        first += count
