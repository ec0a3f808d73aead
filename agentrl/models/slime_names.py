"""Names that modules of slime's own have in its checkpoints in Megatron's format.

In the place of Megatron's attention slime has modules with the tensors of the Hugging Face model:
the delta nets of Qwen3-Next and Qwen3.5, and in its first versions their attention too.
`model.layers.3.linear_attn.A_log` is called `decoder.layers.3.self_attention.linear_attn.A_log`
there. So a weight may be in a checkpoint as the tensors that it is made of, in their shapes.
"""

import re
from collections.abc import Container, Iterable

from agentrl.models.family import Family

__all__ = ["has_slimes_modules", "made_of"]

#: What slime's modules have, by its Hugging Face name within a layer.
_MODULES = ("input_layernorm.weight", "linear_attn.", "self_attn.")
_OF_A_LAYER = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.")
_OF_SLIME = re.compile(
    r"decoder\.layers\.\d+\.self_attention\.(?:" + "|".join(map(re.escape, _MODULES)) + ")"
)


def has_slimes_modules(keys: Iterable[str]) -> bool:
    """Whether a checkpoint has tensors by such names."""
    return any(map(_OF_SLIME.match, keys))


def made_of(key: str, there: Container[str], family: Family, before: str = "") -> dict[str, str]:
    """The Hugging Face tensors that the weight `key` is made of, with the names of slime's modules
    for them; none where `there` has the weight itself, or no part of it. `before`: how names begin
    there (`optimizer.state.exp_avg.`)."""
    if before + key in there or (named := family.named(key)) is None:
        return {}
    names = {hf: _name(hf) for hf in named.hf}
    return names if any(before + name in there for name in names.values()) else {}


def _name(hf: str) -> str:
    return _OF_A_LAYER.sub(r"decoder.layers.\1.self_attention.", hf, count=1)
