"""Gated delta nets (Qwen3-Next, Qwen3.5) on a CPU host, where SGLang has their parts as Triton
kernels alone.

Each kernel is replaced, by SGLang's plugin registry, by a function of its name and arguments in
plain torch; which state belongs to which request, and when it is kept, stays SGLang's. Prefills go
token by token, for all requests at once: right, and for small models.

B = requests, T = their tokens, H = key heads, HV = value heads, K and V = widths of a key and of a
value. A state is [HV, V, K], and all of them are one pool, which slots point into.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

__all__ = ["register_delta_nets"]

_KERNELS = "sglang.kernels.ops."


def register_delta_nets() -> None:
    """Replace the kernels when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for module, function in (
        ("attention.triton_gdn_fused_proj", fused_qkvzba_split_reshape_cat),
        ("attention.triton_gdn_fused_proj", fused_qkvzba_split_reshape_cat_contiguous),
        ("attention.linear.fused_gdn_gating", fused_gdn_gating),
        ("attention.fla.chunk", chunk_gated_delta_rule),
        ("attention.fla.fused_recurrent", fused_recurrent_gated_delta_rule_packed_decode),
        ("attention.fla.fused_norm_gate", rms_norm_gated),
        ("mamba.causal_conv1d_triton", causal_conv1d_fn),
        ("mamba.causal_conv1d_triton", causal_conv1d_update),
        ("elementwise.elementwise", fused_gate_sigmoid_mul_add),
        ("elementwise.elementwise", fused_sigmoid_mul),
    ):
        place = f"{_KERNELS}{module}.{function.__name__}"
        HookRegistry.register(place, function, HookType.REPLACE)
    # Qwen3.5's norm has the name of Qwen3-Next's and other arguments.
    place = f"{_KERNELS}attention.fla.layernorm_gated.{rms_norm_gated.__name__}"
    HookRegistry.register(place, normalised_and_gated, HookType.REPLACE)


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: Tensor,
    mixed_ba: Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What two projections give for each key head, apart: queries, keys and values of all heads one
    after the other [T, channels], gates [T, HV, V], and the rates of writing and of forgetting
    [T, HV]."""
    each, num = num_heads_v // num_heads_qk, len(mixed_qkvz)
    widths = [head_qk, head_qk, each * head_v, each * head_v]
    *qkv, gate = mixed_qkvz.view(num, num_heads_qk, -1).split_with_sizes(widths, -1)
    beta, alpha = mixed_ba.view(num, num_heads_qk, -1).chunk(2, -1)
    return (
        torch.cat([x.flatten(1) for x in qkv], -1),
        gate.reshape(num, num_heads_v, head_v),
        beta.flatten(1),
        alpha.flatten(1),
    )


def fused_qkvzba_split_reshape_cat_contiguous(
    mixed_qkvz: Tensor,
    mixed_ba: Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same where two projections give queries, keys, values and gates of all heads, and then
    the rates of all."""
    gates = num_heads_v * head_v
    qkv, gate = mixed_qkvz.split_with_sizes([mixed_qkvz.shape[1] - gates, gates], -1)
    beta, alpha = (rate.contiguous() for rate in mixed_ba.chunk(2, -1))
    return qkv.contiguous(), gate.reshape(-1, num_heads_v, head_v), beta, alpha


def fused_gdn_gating(
    A_log: Tensor,  # noqa: N803 (SGLang's name)
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """The logarithm of what is kept, and the share that is written: float32 [1, T, HV]."""
    rate = softplus(a.float() + dt_bias.float(), beta, threshold)
    return (-A_log.float().exp() * rate)[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    **_settings: Any,
) -> tuple[Tensor, None, None]:
    """Answers [1, T, HV, V] to the prefills of all requests, whose states go on in the pool."""
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    order = lengths.argsort(descending=True)
    slots, starts = initial_state_indices[order].long(), starts[order].long()
    state = initial_state[slots].float()
    out = torch.empty_like(v[0])
    for place in range(int(lengths.max())):
        # Longer requests stand before shorter ones, so those that go on are the first.
        at = starts[: int((lengths > place).sum())] + place
        now = state[: len(at)]
        out[at] = _answered(now, q[0, at], k[0, at], v[0, at], g[0, at], beta[0, at]).to(v.dtype)
    initial_state[slots] = state.to(initial_state.dtype)
    return out[None], None, None


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,  # noqa: N803 (SGLang's name)
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    **_settings: Any,
) -> None:
    """Write into `out` [B, 1, HV, V] the answers to one token of each request."""
    heads_v, width_v, width_k = initial_state.shape[1:]
    channels = mixed_qkv.shape[1] - heads_v * width_v
    query, key, value = mixed_qkv.split_with_sizes(
        [channels // 2, channels // 2, heads_v * width_v], -1
    )
    query, key = (x.view(len(x), -1, width_k) for x in (query, key))
    decay, beta = fused_gdn_gating(A_log, a, b, dt_bias)
    slots = ssm_state_indices.long()
    state = initial_state[slots].float()
    answers = _answered(state, query, key, value.view(-1, heads_v, width_v), decay[0], beta[0])
    initial_state[slots] = state.to(initial_state.dtype)
    out[:, 0] = answers.to(out.dtype)


def _answered(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> Tensor:
    """Change `state` [B, HV, V, K] by one token of each request, and answer it: [B, HV, V]."""
    each = value.shape[1] // key.shape[1]
    query, key = (_unit(x).repeat_interleave(each, 1)[..., None] for x in (query, key))
    state *= decay.exp()[..., None, None]
    missing = (value.float() - (state @ key)[..., 0]) * beta[..., None]
    state += missing[..., None] * key.mT
    answers: Tensor = (state @ query)[..., 0] * key.shape[-2] ** -0.5
    return answers


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None, activation: str, **rest: Any
) -> Tensor:
    """RMSNorm over the last dimension, times what the activation makes of the gate."""
    normal = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + rest["eps"])
    gate = g.float().sigmoid() if activation == "sigmoid" else silu(g.float())
    return (normal * weight.float() * gate).to(x.dtype)


def normalised_and_gated(
    *, x: Tensor, weight: Tensor, bias: None, z: Tensor, eps: float, activation: str, **_fixed: Any
) -> Tensor:
    """The same under the names that Qwen3.5 calls it by."""
    return rms_norm_gated(x, z.reshape(x.shape), weight, bias, activation, eps=eps)


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: list[int],
    cache_indices: Tensor,
    has_initial_state: Tensor,
    activation: str | None = "silu",
    **_settings: Any,
) -> Tensor:
    """The prefills of all requests [channels, T], convolved; the last tokens of each stay in its
    slot."""
    before, out, start = weight.shape[1] - 1, torch.zeros_like(x), 0
    for slot, length, goes_on in zip(
        cache_indices.tolist(), seq_lens_cpu, has_initial_state.tolist(), strict=True
    ):
        kept = conv_states[slot][:, -before:].to(x.dtype)
        now = slice(start, start + int(length))
        whole = torch.cat([kept if goes_on else torch.zeros_like(kept), x[:, now]], 1)
        out[:, now] = _convolved(whole.unfold(1, before + 1, 1), weight[:, None], bias, activation)
        conv_states[slot] = whole[:, -before:].to(conv_states.dtype)
        start = now.stop
    return out


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: Tensor,
    **_settings: Any,
) -> Tensor:
    """One token of each request [B, channels], convolved with those that its slot has."""
    slots = conv_state_indices.long()
    whole = torch.cat([conv_state[slots].to(x.dtype), x[:, :, None]], -1)
    conv_state[slots] = whole[:, :, 1:].to(conv_state.dtype)
    return _convolved(whole, weight, bias, activation)


def _convolved(
    windows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> Tensor:
    out = (windows * weight).sum(-1)
    if bias is not None:
        out = out + bias
    return silu(out) if activation in ("silu", "swish") else out


def fused_gate_sigmoid_mul_add(
    hidden_states: Tensor, gate_weight: Tensor, shared_output: Tensor, final_hidden_states: Tensor
) -> None:
    """Add the output of the shared expert, times its gate."""
    gate = (hidden_states.float() @ gate_weight.float()).sigmoid()[:, None]
    final_hidden_states += (gate * shared_output.float()).to(final_hidden_states.dtype)


def fused_sigmoid_mul(
    attn_output: Tensor, gate: Tensor, inplace: bool = False, quant: bool = False
) -> Tensor:
    """The output of attention [T, channels], times the gate of each head [T, heads, width]."""
    gated = attn_output * gate.reshape(attn_output.shape).sigmoid()
    return attn_output.copy_(gated) if inplace else gated
