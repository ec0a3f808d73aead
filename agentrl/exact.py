"""Layers of a model whose sums are exact, so that their order and their company mean nothing.

A sum of floating-point numbers depends on its order, and a matrix product takes the order that
suits the shape of its batch. Here each row of numbers is first rounded to whole multiples of one
power of two, so coarse that all products and sums of a row fit into the 53 bits of a float64.
Then nothing is lost on the way, and every order gives the same bits: one token beside others or
alone, one layer or two fused ones, any library, any number of threads. What is left are single
operations that IEEE 754 rounds correctly (+, -, *, /, sqrt), each a torch call of its own; exp and
log are made of these.

All functions take float32 and return float32, and none has a gradient. They are as near to the
true values as torch's own in float32, but for products of long rows: of 4096 numbers they are six
times as far off. At most 2^21 terms are summed.

T tokens, N queries, L keys, H query heads, K key heads, D head size, V vocabulary.
"""

import math

import torch
from torch import Tensor

__all__ = ["attention", "causal", "label_logprobs", "logprobs", "product", "rms_norm", "silu"]

_MANTISSA_BITS = 53
#: Of a weight of the softmax, of which 2^21 are summed.
_WEIGHT_BITS = 32
#: Of a value, and of the shares that it is multiplied by, which sum to 1.
_VALUE_BITS, _SHARE_BITS = 24, 28
#: Scores and logits that exist at a time.
_BLOCK_ELEMENTS, _LOGITS_ELEMENTS = 1 << 18, 1 << 24

_LN2 = math.log(2.0)
#: Series of 2^x for |x| <= 1/2, and of log((1 + s) / (1 - s)) / s in s^2: 1e-11 and 1e-15 off.
_EXP2 = [_LN2**n / math.factorial(n) for n in range(10)]
_LOG = [2.0 / (2 * n + 1) for n in range(9)]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [..., K] times `weight` [N, K]: [..., N]."""
    return _product(x.flatten(0, -2), weight).float().view(*x.shape[:-1], len(weight))


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, scale: float
) -> Tensor:
    """What torch's `scaled_dot_product_attention` computes, of [..., N, D], [..., L, D] and
    [..., L, E]; `attn_mask` is added to the scores and is 0 or -inf. A key under -inf changes no
    bit, whatever it holds but NaN."""
    scores = _product(query, key).mul_(scale).add_(attn_mask)
    weights = _softmax_weights(scores)
    # Each value has a power of two of its own, which goes into its share.
    values, of_key = _whole(value, _VALUE_BITS)
    shares, of_query = _whole(weights * of_key.mT, _WEIGHT_BITS)
    total = shares.sum(-1, keepdim=True)
    shares = shares.div_(total).mul_(2.0**_SHARE_BITS).round_()
    size = total * of_query / weights.sum(-1, keepdim=True) * 2.0**-_SHARE_BITS
    return ((shares @ values) * size).float()


def causal(
    query_NHD: Tensor,
    key_LKD: Tensor,
    value_LKE: Tensor,
    scale: float,
    *,
    block_elements: int = _BLOCK_ELEMENTS,
) -> Tensor:
    """Attention [N, H, E] of the newest N tokens of one sequence over all L, as many queries at a
    time as give `block_elements` scores of a head."""
    num, heads, _ = query_NHD.shape
    length, kv_heads, _ = key_LKD.shape
    key, value = key_LKD.transpose(0, 1), value_LKE.transpose(0, 1)
    place = torch.arange(length)
    first = length - num
    blocks: list[Tensor] = []
    for query in torch.split(query_NHD, max(1, block_elements // length)):
        hidden = place > place[first : first + len(query), None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        grouped = query.view(len(query), kv_heads, -1, query.shape[-1]).permute(1, 2, 0, 3)
        masks = mask.repeat(heads // kv_heads, 1)
        out = attention(grouped.flatten(1, 2), key, value, attn_mask=masks, scale=scale)
        out = out.view(*grouped.shape[:3], -1).permute(2, 0, 1, 3)
        blocks.append(out.flatten(1, 2))
        first += len(query)
    return torch.cat(blocks)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`x` over the root of its mean square in the last dimension, times `weight`."""
    wide = x.double()
    squares, scale = _whole(wide * wide, _MANTISSA_BITS - _bits_of(x.shape[-1]))
    mean = squares.sum(-1, keepdim=True) * scale / x.shape[-1]
    return (wide / (mean + epsilon).sqrt_() * weight.double()).float()


def silu(x: Tensor) -> Tensor:
    """`x` times its sigmoid."""
    wide = x.double()
    return (wide / (_exp(-wide) + 1.0)).float()


def label_logprobs(
    hidden_TH: Tensor, weight_VH: Tensor, labels_T: Tensor, temperature: float | Tensor
) -> Tensor:
    """[T], as `logprobs` gives them of the logits that an output layer makes, at a temperature of
    all tokens or of each, [T]."""
    rows = max(1, _LOGITS_ELEMENTS // len(weight_VH))
    heat_T = torch.as_tensor(temperature, dtype=torch.float32).expand(len(labels_T))
    parts = zip(
        *(torch.split(each, rows) for each in (hidden_TH, labels_T, heat_T[:, None])), strict=True
    )
    return torch.cat(
        [logprobs(product(hidden, weight_VH), own, heat) for hidden, own, heat in parts]
    )


def logprobs(logits_TV: Tensor, labels_T: Tensor, temperature: Tensor) -> Tensor:
    """[T], log softmax of the labels at a temperature in float32, as engines have it, for all
    tokens or for each, [T, 1]."""
    logits = logits_TV.double() / temperature.double()
    label = logits.gather(-1, labels_T.long()[:, None])[:, 0]
    total = _softmax_weights(logits).sum(-1) * 2.0**-_WEIGHT_BITS
    return (label - logits.amax(-1) - _log(total)).float()


def _whole(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """`x` [..., K] as whole numbers of up to `bits` bits, and what one of them is worth in each
    row, [..., 1]: a power of two, by the greatest of the row."""
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent
    return (x.double() * _power(bits - exponent)).round_(), _power(exponent - bits)


def _power(exponent: Tensor) -> Tensor:
    """2 to a whole number of more than -1023, by the bits of a float64: exact."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def _bits_of(num: int) -> int:
    """By how many bits a sum of `num` numbers may be longer than the longest of them."""
    return (num - 1).bit_length()


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Float64 [..., M, N] of [..., M, K] and [..., N, K]."""
    bits = (_MANTISSA_BITS - _bits_of(x.shape[-1])) // 2
    (a, of_a), (b, of_b) = _whole(x, bits), _whole(y, bits)
    return (a @ b.mT).mul_(of_a).mul_(of_b.mT)


def _softmax_weights(scores: Tensor) -> Tensor:
    """exp(score - the greatest of its row), as whole numbers of 2^-_WEIGHT_BITS."""
    weights = _exp(scores - scores.amax(-1, keepdim=True))
    return weights.mul_(2.0**_WEIGHT_BITS).round_()


def _series(x: Tensor, factors: list[float]) -> Tensor:
    total = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total.mul_(x).add_(factor)
    return total


def _exp(x: Tensor) -> Tensor:
    turns = (x * (1.0 / _LN2)).clamp_(-1000.0, 1000.0)
    whole = turns.round()
    return _series(turns.sub_(whole), _EXP2).mul_(_power(whole))


def _log(x: Tensor) -> Tensor:
    part, exponent = torch.frexp(x)
    is_small = part < math.sqrt(0.5)
    part = torch.where(is_small, part * 2.0, part)
    s = (part - 1.0) / (part + 1.0)
    return s * _series(s * s, _LOG) + (exponent - is_small.int()).double() * _LN2
