"""Packed attention whose heads may look away: each has a sink, a learned score that stands beside
those of the keys in the softmax and has no value (gpt-oss; https://arxiv.org/abs/2309.17453).

With s the sink and l the logarithm of the sum of the exponentials of the scores, the weight of a
key is exp(score - log(exp(l) + exp(s))). No fused kernel here gives that with its gradient, so
scores are computed in float32, for some queries at a time, and computed again for the backward
pass: memory grows with the length of a sequence and not with its square.
"""

import sys
from typing import Any

import torch
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentrl.learner.megatron.attention import PackedAttention, lengths_of, window_mask

__all__ = ["SinkAttention", "attend_with_sinks"]


class SinkAttention(PackedAttention):
    """`PackedAttention` with a sink for each head of this rank, in every layer; some have a window
    as well."""

    max_block = 256

    def __init__(self, config: Any, pg_collection: Any, **rest: Any) -> None:
        super().__init__(config, pg_collection=pg_collection, **rest)
        self._group = pg_collection.tp
        heads = config.num_attention_heads // self._group.size()
        # Called as in megatron-core's own attention, and so in Megatron's checkpoints.
        self.softmax_offset = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))
        if self.window_size[0] < 0:
            self.window_size = (sys.maxsize, 0)  # whatever stands before

    def _variable_length(self, query: Tensor, key: Tensor, value: Tensor, packed: Any) -> Tensor:
        return self._one_by_one(query, key, value, lengths_of(packed))

    def _attend_near(self, query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        # What goes in is kept until the backward pass: no mask, which has a row for each query.
        inputs = (query, key, value, self.softmax_offset, first, self.window_size[0])
        out: Tensor = checkpoint(
            _attend_near, *inputs, self.softmax_scale, use_reentrant=False, preserve_rng_state=False
        )
        return out

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> Any:
        """megatron-core's description of the sinks, cut over the tensor-parallel ranks."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self._group,
            dp_cp_group=metadata["dp_cp_group"],
        )


def _attend_near(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    first: int,
    before: int,
    scale: float | None,
) -> Tensor:
    mask = window_mask(query, key, first, before)
    return attend_with_sinks(query, key, value, sinks, mask, scale)


def attend_with_sinks(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """Attention [q, heads, e] of query [q, heads, d] over key [k, groups, d] and value
    [k, groups, e]. `sinks` [heads]; `mask` [q, k] is true where a query sees a key, of which each
    sees one; `scale` of the scores: 1 / sqrt(d) if not given."""
    num, heads, width = query.shape
    groups = key.shape[1]
    grouped = query.reshape(num, groups, heads // groups, width)
    scores = torch.einsum("qgrd,kgd->grqk", grouped.float(), key.float())
    scores = scores * (width**-0.5 if scale is None else scale)
    scores = scores.masked_fill(~mask, float("-inf"))
    sink = sinks.float().view(groups, -1, 1, 1)
    weights = (scores - torch.logaddexp(scores.logsumexp(-1, keepdim=True), sink)).exp()
    out = torch.einsum("grqk,kge->qgre", weights.to(value.dtype), value)
    return out.reshape(num, heads, -1)
