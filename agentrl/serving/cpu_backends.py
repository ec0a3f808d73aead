"""SGLang's attention and sampling for CPU hosts, where its own take most of a decode step.

`torch_native` attends to one request after the other. The backend here follows a plan for all of
them, made once per forward pass (`agentrl.serving.cpu_attention`). What the plan does not cover
goes to `torch_native`: layers with a sliding window, cross and encoder attention, a cache of
another type than the queries, and very long prefills. Heads with sinks (`cpu_sinks`), which
`torch_native` has not, are attended to one request after the other. Loaded by SGLang inside engine
processes only.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.layers.sampler import Sampler
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import scaled_dot_product_attention

from agentrl.serving.cpu_attention import Chunk, Workspace, attend, attend_with_sinks, plan_chunks
from agentrl.serving.cpu_sampling import sample_by_inversion

__all__ = ["BatchedAttnBackend", "InversionSampler"]


class BatchedAttnBackend(TorchNativeAttnBackend):  # type: ignore[misc]
    """PLANNED by `init_forward_metadata` -> used by every layer -> PLANNED for the next batch."""

    needs_cpu_seq_lens = True
    #: What attends, with the arguments of torch's.
    core: Callable[..., torch.Tensor] = staticmethod(scaled_dot_product_attention)

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        if model_runner.page_size > 1:
            raise ValueError(
                f"the torch_batched attention backend needs --page-size 1, not"
                f" {model_runner.page_size}: SGLang looks up the slots of larger pages by Triton"
            )
        self._dtype = model_runner.dtype
        self._chunks: list[Chunk] | None = None
        self._workspace = Workspace()

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        self._chunks = None
        mode = forward_batch.forward_mode
        if mode.is_idle() or forward_batch.encoder_lens is not None:
            return
        num_keys = forward_batch.seq_lens_cpu.tolist()
        if mode.is_decode():
            num_queries = [1] * len(num_keys)
        elif forward_batch.extend_seq_lens is not None:
            num_queries = forward_batch.extend_seq_lens.tolist()
        else:
            return
        self._chunks = plan_chunks(
            self.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            num_keys,
            num_queries,
            self._dtype,
        )

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        """Length of the requests that fill up a batch which ranks want to be of one size."""
        return 1

    def forward_decode(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if sinks is not None:
            return self._with_sinks(q, k, v, layer, forward_batch, save_kv_cache, sinks)
        out = self._planned(q, k, v, layer, forward_batch, save_kv_cache)
        if out is None:
            out = super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        return out

    def forward_extend(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if sinks is not None:
            return self._with_sinks(q, k, v, layer, forward_batch, save_kv_cache, sinks)
        out = self._planned(q, k, v, layer, forward_batch, save_kv_cache)
        if out is None:
            out = super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return out

    def _planned(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool
    ) -> torch.Tensor | None:
        """The layer's attention by the plan, [tokens, heads * head size]; None if not covered."""
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        if self._chunks is None or not _covered(layer) or not keys.dtype == q.dtype == self._dtype:
            return None
        self._keep(k, v, layer, forward_batch, save_kv_cache)
        query: torch.Tensor = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = query.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        attend(
            self._chunks,
            query,
            keys,
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            out,
            scale=layer.scaling,
            workspace=self._workspace,
            core=self.core,
        )
        return out.flatten(1)

    def _keep(self, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool) -> None:
        if save_kv_cache and k is not None and v is not None:
            loc = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, loc, k, v)

    def _with_sinks(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        sinks: torch.Tensor,
    ) -> torch.Tensor:
        """As `_planned`, request by request. A cache that keeps no more than the window of a layer
        has slots of its own for it."""
        self._keep(k, v, layer, forward_batch, save_kv_cache)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        query: torch.Tensor = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        lengths = forward_batch.seq_lens_cpu.tolist()
        is_decode = forward_batch.forward_mode.is_decode()
        counts = [1] * len(lengths) if is_decode else forward_batch.extend_seq_lens.tolist()
        given = layer.sliding_window_size
        has_window = given is not None and given >= 0
        window = given if has_window else sys.maxsize
        out = []
        requests = forward_batch.req_pool_indices.tolist()
        own = torch.split(query, counts)
        for request, length, mine in zip(requests, lengths, own, strict=True):
            first = max(0, length - len(mine) - window)
            slots = self.req_to_token_pool.req_to_token[request, first:length].long()
            if has_window and self.use_sliding_window_kv_pool:
                slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
            out.append(
                attend_with_sinks(
                    mine, keys[slots], values[slots], sinks, scale=layer.scaling, window=window
                )
            )
        return torch.cat(out).flatten(1)


def _covered(layer: Any) -> bool:
    window = layer.sliding_window_size
    return (
        not layer.is_cross_attention
        and layer.attn_type == AttentionType.DECODER
        and (window is None or window < 0)
    )


class InversionSampler(Sampler):  # type: ignore[misc]
    """SGLang's sampler, but for the unseeded draw from the whole distribution."""

    def _sample_from_probs(
        self, probs: torch.Tensor, sampling_info: Any, positions: Any, simple_sampling_case: bool
    ) -> Any:
        masked = sampling_info.sampling_mask_batch_indices is not None
        if not simple_sampling_case or masked or sampling_info.sampling_seed is not None:
            return super()._sample_from_probs(probs, sampling_info, positions, simple_sampling_case)
        return sample_by_inversion(probs).to(torch.int32), None
