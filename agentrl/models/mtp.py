"""Layers of multi-token prediction: their tensors, and a model in which they are trained.

Such a layer predicts the token after the next one, from the hidden state of the decoder's last
layer and the embedding of the next token (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section
2.2). It has two norms, a projection of what they give, a layer like the decoder's last, and a norm;
embedding and output weights are the decoder's.

Without training they are passengers of a checkpoint (`Family.is_passenger`). Refused, by name: a
family that lists no tensors of them, and a checkpoint that has none.
"""

import re
from collections.abc import Callable

import msgspec

from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.family import Family, Part, swapped_columns
from agentrl.models.registry import Model

__all__ = ["behind_the_decoder", "mtp_parts", "with_mtp"]

#: How the names of tensors of a layer begin in megatron-core, and on disk.
_LAYER = "mtp.layers.{layer}."
_DECODER, _MODEL = "decoder.layers.{layer}.", "model.layers.{layer}."
_EXPERT = re.compile(r"\.experts\.\d+\.")


def mtp_parts(
    parts: tuple[Part, ...],
    place: str,
    *,
    enorm: str,
    hnorm: str,
    eh_proj: str,
    final_layernorm: str,
    is_hidden_first: bool = False,
) -> tuple[Part, ...]:
    """The tensors of a layer whose own layer has those of `parts`, a decoder's. `place`: how their
    names begin on disk, `{layer}` being the number of the layer, from 0, and `{behind}` the same
    counted on from the decoder's layers; then the names of its own four tensors. The projection is
    of embeddings and hidden states side by side, or, `is_hidden_first`, the other way round."""
    projection = (f"{place}{eh_proj}.weight",)
    return (
        Part(f"{_LAYER}enorm.weight", (f"{place}{enorm}.weight",)),
        Part(f"{_LAYER}hnorm.weight", (f"{place}{hnorm}.weight",)),
        Part(f"{_LAYER}eh_proj.weight", projection * 2, swapped_columns)
        if is_hidden_first
        else Part(f"{_LAYER}eh_proj.weight", projection),
        Part(f"{_LAYER}final_layernorm.weight", (f"{place}{final_layernorm}.weight",)),
        *(
            Part(
                part.key.replace(_DECODER, f"{_LAYER}transformer_layer."),
                tuple(name.replace(_MODEL, place) for name in part.hf),
                part.split,
            )
            for part in parts
            if "{layer}" in part.key
        ),
    )


def behind_the_decoder(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """As DeepSeek-V3 has them and GLM-4.5: numbered on from the decoder's layers."""
    return mtp_parts(
        parts,
        "model.layers.{behind}.",
        enorm="enorm",
        hnorm="hnorm",
        eh_proj="eh_proj",
        final_layernorm="shared_head.norm",
    )


def with_mtp(model: Model, flag: str = "--enable-mtp-training") -> Model:
    """`model` with its layers of multi-token prediction among those that are built and trained, as
    `flag` asks for. Raises ConfigError."""
    family, architecture = model
    number = architecture.num_nextn_predict_layers
    if not family.mtp:
        raise ConfigError(
            f"{flag}: the tensors of its layers of multi-token prediction are not known of a "
            f"{architecture.name}; leave the flag out, and a Hugging Face model that is written "
            "has them as they lie in --hf-checkpoint (docs/models.md has the families that train "
            "them)"
        )
    if type(number) is not int or number < 1:
        says = "says nothing" if number is None else f"says {number!r}"
        raise ConfigError(
            f"{flag}: this {architecture.name} has no layers of multi-token "
            f"prediction: config.json {says} of num_nextn_predict_layers; leave it out, or use a "
            "checkpoint that has some"
        )
    parts = tuple(_numbered(part, architecture, n) for n in range(number) for part in family.mtp)
    trained = frozenset(name for part in parts for name in part.hf)
    more = {"parts": (*family.parts, *parts), "is_passenger": _but_for(trained, family)}
    return Model(
        msgspec.structs.replace(family, **more),
        msgspec.structs.replace(architecture, mtp_num_layers=number),
    )


def _numbered(part: Part, architecture: Architecture, number: int) -> Part:
    """That of the layer `number`, from 0."""
    behind = str(architecture.num_layers + number)
    key, *names = (
        name.replace("{layer}", str(number)).replace("{behind}", behind)
        for name in (part.key, *part.hf)
    )
    return Part(key, tuple(names), part.split)


def _but_for(trained: frozenset[str], family: Family) -> Callable[[str, Architecture], bool]:
    """What stays a passenger where `trained` are none."""

    def is_passenger(name: str, architecture: Architecture) -> bool:
        rule = family.is_passenger
        is_trained = _EXPERT.sub(".experts.{expert}.", name) in trained
        return not is_trained and rule is not None and rule(name, architecture)

    return is_passenger
