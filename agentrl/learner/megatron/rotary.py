"""Rotary positions: frequencies from the data of an `Architecture`, and the rotation of packed
sequences, in the place of megatron-core's own.

megatron-core has Llama 3's with other numbers fixed in its code, and no attention factor on its
usual path. Each operation is in the order of transformers and SGLang and in float32, so that
frequencies are bit-equal: an angle is a frequency times a position, and a last bit counts.

megatron-core's rotation of packed sequences reads their lengths from the device twice in each
layer, so that a GPU waits for its host, and copies what it turns four times.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from agentrl.learner.megatron.gpu_kernels import compiled_on_cuda
from agentrl.models.architecture import Architecture
from agentrl.models.rope import LinearRope, Llama3Rope, Rope, YarnRope

__all__ = ["inverse_frequencies", "rotate_packed", "scale_magnitude", "set_frequencies"]


class _Turns(NamedTuple):
    """Cosines and sines [tokens, 1, turned dim], and what they are made of."""

    freqs: Tensor
    mscale: float
    dtype: torch.dtype
    cos: Tensor
    sin: Tensor


#: By the ends of packed sequences: those of a micro-batch are the same tensor in all layers.
_positions: Any = WeakTensorKeyDictionary()
#: By these positions, the newest: queries and keys of all layers turn alike, but for models whose
#: layers have frequencies of their own (latent attention).
_turns: Any = WeakTensorKeyDictionary()


def set_frequencies(model: Any, architecture: Architecture) -> None:
    """Give a GPTModel the frequencies of its architecture, before its first call."""
    rotary = getattr(model, "rotary_pos_emb", None)
    if rotary is not None:  # a model with latent attention has one in each of its layers
        dim = 2 * len(rotary.inv_freq)
        rotary.inv_freq = inverse_frequencies(architecture.rope, architecture.rotary_base, dim)


def scale_magnitude(config: Any, rope: Rope) -> None:
    """Have megatron-core's attention multiply cosine and sine as YaRN asks: it takes three
    attributes, of which it makes 0.1 * mscale * log(factor) + 1."""
    if isinstance(rope, YarnRope):
        config.yarn_rotary_scaling_factor = math.e
        config.yarn_mscale = (rope.magnitude - 1) / 0.1
        config.yarn_mscale_all_dim = 0.0


def inverse_frequencies(rope: Rope, base: float, dim: int) -> Tensor:
    """Float32 [dim / 2] on the CPU: the angle between two positions, of each rotated pair."""
    steps = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    match rope:
        case LinearRope():
            return 1.0 / base**steps / rope.factor
        case Llama3Rope():
            return _llama3(1.0 / base**steps, rope)
        case YarnRope():
            return _yarn(base**steps, rope, base)


def _llama3(plain: Tensor, rope: Llama3Rope) -> Tensor:
    """Keep waves shorter than one context of the first training by `high_freq_factor`, stretch
    those longer than by `low_freq_factor`, and go over smoothly in between."""
    turns = rope.original_max_position_embeddings / (2 * math.pi / plain)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = (turns - low) / (high - low)
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(turns < low, plain / rope.factor, between)
    return torch.where(turns > high, plain, stretched)


def _yarn(waves: Tensor, rope: YarnRope, base: float) -> Tensor:
    def pair(turns: float) -> float:
        """The pair that turns so often within the context of the first training."""
        length = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(base))

    dim = 2 * len(waves)
    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * waves) * (1 - kept) + 1.0 / waves * kept


def rotate_packed(
    t: Tensor,
    cu_seqlens: Tensor,
    freqs: Tensor,
    rotary_interleaved: bool = False,
    multi_latent_attention: bool = False,
    mscale: float = 1.0,
    cp_group: Any = None,
) -> Tensor:
    """`t` [tokens, heads, dim] of sequences that end at `cu_seqlens`, each turned from its own
    position 0 on; of the angles `freqs` [longest, 1, 1, turned dim]. What megatron-core's
    `_apply_rotary_pos_emb_thd` gives, with its arguments."""
    positions = _positions.get(cu_seqlens)
    if positions is None or len(positions) != len(t):
        positions = _positions_of(cu_seqlens, len(t), cp_group.size(), cp_group.rank())
        _positions[cu_seqlens] = positions
    made = _turns.get(positions)
    if made is None or made.freqs is not freqs or (made.mscale, made.dtype) != (mscale, t.dtype):
        angles = freqs[:, 0][positions]
        cos, sin = ((f(angles) * mscale).to(t.dtype) for f in (torch.cos, torch.sin))
        made = _turns[positions] = _Turns(freqs, mscale, t.dtype, cos, sin)
    cos, sin = made.cos, made.sin
    return _turned(t, cos, sin, rotary_interleaved, multi_latent_attention)


def _positions_of(cu_seqlens: Tensor, num_tokens: int, size: int, rank: int) -> Tensor:
    """[tokens], of each token in its sequence, of which a rank of `size` context-parallel ones
    holds chunks `rank` and 2 size - 1 - rank."""
    lengths = cu_seqlens.diff() // size
    numbers = torch.arange(len(lengths), device=cu_seqlens.device)
    sequence = torch.repeat_interleave(numbers, lengths, output_size=num_tokens)
    here = torch.arange(num_tokens, device=cu_seqlens.device) - cu_seqlens[sequence] // size
    chunk = lengths[sequence] // 2
    return here + chunk * torch.where(here < chunk, rank, 2 * size - 2 - rank)


@compiled_on_cuda
def _turned(t: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, of_latent: bool) -> Tensor:
    width = cos.shape[-1]
    turned, rest = t[..., :width], t[..., width:]
    if of_latent:
        turned = torch.cat((turned[..., 0::2], turned[..., 1::2]), dim=-1)
    if interleaved:
        half = torch.stack((-turned[..., 1::2], turned[..., 0::2]), dim=-1).flatten(-2)
    else:
        half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), dim=-1)
    turned = turned * cos + half * sin
    return torch.cat((turned, rest), dim=-1) if width < t.shape[-1] else turned
