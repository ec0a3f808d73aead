"""`--true-on-policy-mode` in an engine on a CPU: its layers compute as `agentrl.exact` does.

SGLang's plugin registry replaces what its dense models are made of; attention and the reported
log-probabilities are classes of our own. Loaded by SGLang inside engine processes only.
"""

from typing import Any

import torch
from torch import Tensor

from agentrl import exact
from agentrl.serving.cpu_backends import BatchedAttnBackend, InversionSampler

__all__ = ["ExactAttnBackend", "ExactSampler", "register_exact_layers"]


def register_exact_layers() -> None:
    """Replace the layers when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for place, function in {
        "quantization.unquant.UnquantizedLinearMethod.apply": _linear,
        "logits_processor.LogitsProcessor._compute_lm_head": _logits,
        "layernorm.RMSNorm.forward_native": _norm,
        "activation.SiluAndMul.forward_native": _gated,
    }.items():
        HookRegistry.register(f"sglang.srt.layers.{place}", function, HookType.REPLACE)


def _linear(_method: Any, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    out = exact.product(x, layer.weight)
    return out if bias is None else out + bias


def _logits(_processor: Any, hidden: Tensor, head: Any, *_unused: Any, **_none: Any) -> Tensor:
    return exact.product(hidden, head.weight)


def _norm(
    norm: Any, x: Tensor, residual: Tensor | None = None, *_unused: Any, **_none: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """A residual is added before; it is returned too."""
    if residual is None:
        return exact.rms_norm(x, norm.weight, norm.variance_epsilon)
    x = x + residual
    return exact.rms_norm(x, norm.weight, norm.variance_epsilon), x


def _gated(_activation: Any, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return exact.silu(gate) * up


class ExactAttnBackend(BatchedAttnBackend):
    """As planned for many requests at once; a prefill that is too long for a plan goes request by
    request, in blocks."""

    core = staticmethod(exact.attention)

    def _planned(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool
    ) -> Tensor:
        out = super()._planned(q, k, v, layer, forward_batch, save_kv_cache)
        if out is not None:
            return out
        self._keep(k, v, layer, forward_batch, save_kv_cache)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys, values = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        table = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices]
        lengths = forward_batch.seq_lens_cpu.tolist()
        own = query.split(forward_batch.extend_seq_lens.tolist())
        slots = [row[:length].long() for row, length in zip(table, lengths, strict=True)]
        found = [
            exact.causal(mine, keys[here], values[here], layer.scaling)
            for mine, here in zip(own, slots, strict=True)
        ]
        return torch.cat(found).flatten(1)


class ExactSampler(InversionSampler):
    """The log-probabilities that it reports are those of `exact.logprobs`."""

    def forward(
        self, output: Any, info: Any, return_logprob: bool, *rest: Any, **named: Any
    ) -> Any:
        logits = output.next_token_logits.clone()  # it divides them in place
        chosen = super().forward(output, info, return_logprob, *rest, **named)
        if return_logprob:
            heat = torch.ones(1, 1) if info.is_all_greedy else info.temperatures
            output.next_token_logprobs = exact.logprobs(logits, chosen, heat)
        return chosen
