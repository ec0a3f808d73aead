"""Core attention of packed (thd) sequences on torch's scaled_dot_product_attention.

Causal, grouped queries, with or without a sliding window and context parallelism; plugs into
megatron-core's layer spec.
megatron-core's own core attention takes no packed sequences without Transformer Engine. On CUDA one
variable-length kernel serves a whole micro-batch; on the CPU, and in float32, which that kernel
(FlashAttention) refuses, each sequence is one causal call; under a window, one for each block of
queries with the keys that they see.

Values may be narrower than keys, as in latent attention. FlashAttention takes no such widths: on
CUDA they are padded to those of the keys, a fifth more work where 192 meet 128.

Under context parallelism of size C every sequence is cut into 2C chunks and rank r holds chunks r
and 2C-1-r, in that order, which gives all ranks equal work. Keys and values are gathered.
Refused: attention dropout, and anything that is not packed.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from agentrl.learner.megatron.zigzag import gathered_order

__all__ = ["PackedAttention", "lengths_of", "window_mask"]


#: What torch's variable-length attention computes in.
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)

#: Queries of one call under a window: enough to keep a core busy where the window is short.
_MIN_BLOCK = 256


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Attention over query [t, heads, d], key [t, groups, d] and value [t, groups, e] of packed
    sequences, e being at most d."""

    #: Queries of one call under a window, at most.
    max_block = sys.maxsize

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__(config=config)
        if attention_dropout or config.attention_dropout:
            raise ValueError("packed attention has no dropout; set attention_dropout to 0")
        self.softmax_scale = softmax_scale
        self.window_size = (-1, 0)
        if is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        ):
            self.window_size = config.window_size
        self.cp_group = (
            parallel_state.get_context_parallel_group()
            if pg_collection is None
            else pg_collection.cp
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """[t, heads * e]. `packed_seq_params.cu_seqlens_q` counts whole sequences, of which a
        context-parallel rank holds its share."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd":
            raise ValueError("this core attention takes packed (thd) sequences only")
        if self.cp_group.size() > 1:
            out = self._context_parallel(query, key, value, packed_seq_params)
        elif query.is_cuda and query.dtype in _KERNEL_DTYPES:
            out = self._variable_length(query, key, value, packed_seq_params)
        else:
            out = self._one_by_one(query, key, value, lengths_of(packed_seq_params))
        return out.reshape(query.shape[0], -1)

    def _one_by_one(self, query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
        parts = zip(*(torch.split(x, lengths) for x in (query, key, value)), strict=True)
        if self.window_size[0] >= 0:
            windows = (self._within_window(q, k, v, 0) for q, k, v in parts)
            return torch.cat([block for window in windows for block in window])
        return torch.cat([self._attend(q, k, v, is_causal=True) for q, k, v in parts])

    def _within_window(
        self, query: Tensor, key: Tensor, value: Tensor, first: int
    ) -> Iterator[Tensor]:
        """Attention of the queries at `first` and behind in one sequence, which see themselves and
        `window_size[0]` tokens before; in blocks, so that memory does not grow with its square."""
        before = self.window_size[0]
        block = min(max(before + 1, _MIN_BLOCK), self.max_block)
        for start in range(first, first + len(query), block):
            end = min(start + block, first + len(query))
            keys = slice(max(0, start - before), end)
            yield self._attend_near(
                query[start - first : end - first], key[keys], value[keys], start - keys.start
            )

    def _attend_near(self, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        """Attention under the window; the first query is that of key number `first`."""
        mask = window_mask(query, key, first, self.window_size[0])
        return self._attend(query, key, value, attn_mask=mask)

    def _variable_length(self, query: Tensor, key: Tensor, value: Tensor, packed: Any) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        cu, longest = packed.cu_seqlens_q, packed.max_seqlen_q
        width, lacking = value.shape[-1], key.shape[-1] - value.shape[-1]
        out = varlen_attn(
            query,
            key,
            pad(value, (0, lacking)) if lacking else value,
            cu,
            cu,
            longest,
            longest,
            scale=self.softmax_scale,
            window_size=self.window_size,
            enable_gqa=True,
        )
        assert isinstance(out, Tensor)
        return out[..., :width]

    def _context_parallel(self, query: Tensor, key: Tensor, value: Tensor, packed: Any) -> Tensor:
        # Imported where it is used: it loads torch's compiler, over a second at start.
        from torch.nn.attention.bias import causal_lower_right

        size, rank = self.cp_group.size(), self.cp_group.rank()
        lengths, order = lengths_of(packed), _order_of(packed, size)
        key, value = (
            gather_from_sequence_parallel_region(x.contiguous(), group=self.cp_group)[order]
            for x in (key, value)
        )
        out: list[Tensor] = []
        start = at = 0
        for length in lengths:
            for first, last in _chunks(length, size, rank):
                keys = slice(start, start + last)
                q, k, v = query[at : at + last - first], key[keys], value[keys]
                if self.window_size[0] >= 0:
                    out += self._within_window(q, k, v, first)
                else:
                    mask = causal_lower_right(last - first, last)
                    out.append(self._attend(q, k, v, attn_mask=mask))
                at += last - first
            start += length
        return torch.cat(out)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **causal: Any) -> Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        out = scaled_dot_product_attention(
            q, k, v, scale=self.softmax_scale, enable_gqa=q.shape[1] != k.shape[1], **causal
        )
        return out.squeeze(0).transpose(0, 1)


def window_mask(query: Tensor, key: Tensor, first: int, before: int) -> Tensor:
    """[q, k], true where a query sees a key: itself and `before` keys before it. The first query is
    that of key number `first`."""
    places = torch.arange(len(key), device=query.device)
    distance = places[first : first + len(query), None] - places
    return (distance >= 0) & (distance <= before)


def lengths_of(packed: Any) -> list[int]:
    """Of packed sequences, read from the device once for all layers."""
    lengths: list[int] | None = getattr(packed, "_lengths", None)
    if lengths is None:
        lengths = packed._lengths = [int(n) for n in packed.cu_seqlens_q.diff().tolist()]
    return lengths


def _order_of(packed: Any, size: int) -> Tensor:
    """`gathered_order` for `size` ranks, made once for all layers."""
    order: Tensor | None = getattr(packed, "_order", None)
    if order is None:
        device = packed.cu_seqlens_q.device
        order = packed._order = gathered_order(lengths_of(packed), size).to(device)
    return order


def _chunks(length: int, size: int, rank: int) -> Iterator[Sequence[int]]:
    chunk = length // (2 * size)
    for index in (rank, 2 * size - 1 - rank):
        yield index * chunk, (index + 1) * chunk
