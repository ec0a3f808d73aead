"""How rotary positions are scaled: the `rope_parameters` of a config.json as data.

Newer files have one object, older ones `rope_scaling` (with `type` or `rope_type`) beside a loose
`rope_theta`. The kinds here do not depend on the length of a sequence. Refused, by name: any other
kind, a number that is no number, and an attention factor that engines would not take: SGLang
computes it from the other numbers.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentrl.errors import ConfigError

__all__ = [
    "LinearRope",
    "Llama3Rope",
    "Rope",
    "YarnRope",
    "read_rope",
    "rope_parameters",
    "written_otherwise",
    "written_yarn",
]


class LinearRope(msgspec.Struct, frozen=True, kw_only=True):
    """All frequencies divided by `factor`; 1 leaves them as they are."""

    factor: float = 1.0


class Llama3Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Low frequencies divided by `factor`, high ones kept, as Llama 3.1 has it."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class YarnRope(msgspec.Struct, frozen=True, kw_only=True):
    """YaRN, https://arxiv.org/abs/2309.00071, and the names of transformers."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.mscale and self.mscale_all_dim:
            return self._scale(self.mscale) / self._scale(self.mscale_all_dim)
        return self._scale(1.0)

    def _scale(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


Rope = LinearRope | Llama3Rope | YarnRope

_KINDS: dict[str, type[Rope]] = {
    "default": LinearRope,
    "linear": LinearRope,
    "llama3": Llama3Rope,
    "yarn": YarnRope,
}


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters of a config.json in one object, with `rope_type` and `rope_theta`. Raises
    ConfigError where they stand under both keys and differ."""
    newer, older = (config.get(key) or {} for key in ("rope_parameters", "rope_scaling"))
    theta = config.get("rope_theta")
    usual = 10000.0 if theta is None else theta
    found = _whole(newer or older, usual)
    if newer and older and found != _whole(older, usual):
        raise ConfigError(
            f"rope_scaling {older} beside rope_parameters {newer} is not supported: transformers "
            "takes the first and nothing of the second; leave out the one that is not meant"
        )
    return found


def _whole(given: dict[str, Any], theta: float) -> dict[str, Any]:
    told = {key: value for key, value in given.items() if value is not None}
    kind = told.get("rope_type", told.pop("type", "default"))
    return {"rope_theta": theta} | told | {"rope_type": kind}


def read_rope(config: dict[str, Any]) -> Rope:
    """The scaling that a config.json asks for. Raises ConfigError."""
    found = rope_parameters(config)
    kind, longest = found["rope_type"], config["max_position_embeddings"]
    if kind not in _KINDS:
        raise ConfigError(f"rope type {kind} is not supported, only {', '.join(_KINDS)}")
    if kind == "default":
        return LinearRope()
    original = config.get("original_max_position_embeddings")
    found.setdefault("original_max_position_embeddings", longest)
    if original is not None:
        found["original_max_position_embeddings"] = original
    try:
        rope = msgspec.convert(found, _KINDS[kind])
    except msgspec.ValidationError as error:
        raise ConfigError(f"rope type {kind}: {error}") from None
    told = found.get("attention_factor")
    if isinstance(rope, YarnRope) and told is not None and not math.isclose(told, rope.magnitude):
        raise ConfigError(
            f"rope type yarn with attention_factor {told}: engines compute {rope.magnitude:.6g} "
            "whatever it says; leave it out"
        )
    return rope


#: Megatron's arguments of YaRN, outside of latent attention.
_WRITTEN_YARN = {
    "yarn_rotary_scaling_factor": "factor",
    "yarn_original_max_position_embeddings": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_correction_range_round_to_int": "truncate",
}


def written_yarn(rope: YarnRope) -> dict[str, Any]:
    """Megatron's arguments of YaRN."""
    return {name: getattr(rope, field) for name, field in _WRITTEN_YARN.items()}


def written_otherwise(rope: Rope, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Where the `arguments` of a run of Megatron's scale positions otherwise than `rope`, with both
    values of each. A config.json may add YaRN to weights that were written without it."""
    told: dict[str, Any] = {"use_rope_scaling": isinstance(rope, Llama3Rope)}
    if isinstance(rope, LinearRope):
        told["rotary_seq_len_interpolation_factor"] = rope.factor
    if arguments.get("position_embedding_type") == "yarn":
        if isinstance(rope, YarnRope):
            told |= written_yarn(rope)
        else:
            told["position_embedding_type"] = "rope"
    # slime's scripts give Llama's factor as --rotary-scaling-factor; the other has its default.
    is_slimes = arguments.get("rotary_scaling_factor") == rope.factor
    if isinstance(rope, Llama3Rope) and arguments.get("use_rope_scaling") and not is_slimes:
        told["rope_scaling_factor"] = rope.factor
    for name, ours in told.items():
        if (theirs := arguments.get(name, ours)) != ours:
            yield f"{name} {theirs} instead of {ours}"
