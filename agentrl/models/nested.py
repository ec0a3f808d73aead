"""A text model inside one that also sees: what is trained of it is the text.

Its tensors lie one name deeper, and those of the eyes are passengers: they are neither trained nor
pushed, engines keep those that they began with, and every model that is saved has them as they
were.
"""

import msgspec

from agentrl.models.architecture import Architecture
from agentrl.models.family import Family, Part

__all__ = ["VISION_TINY", "seeing"]

#: What a small config.json says of eyes.
VISION_TINY = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}


def seeing(text: Family, *, name: str, architecture: str, engine_class: str) -> Family:
    """The family of models that have a `text` inside and eyes beside it."""
    of_text = text.is_passenger

    def is_passenger(tensor: str, described: Architecture) -> bool:
        beside = of_text is not None and of_text(tensor, described)
        return beside or tensor.startswith("model.visual.")

    return msgspec.structs.replace(
        text,
        name=name,
        architectures=(architecture,),
        parts=tuple(map(_deeper, text.parts)),
        is_passenger=is_passenger,
        engine_class=engine_class,
        tiny={**text.tiny, "architectures": [architecture], "vision_config": VISION_TINY},
    )


def _deeper(part: Part) -> Part:
    names = (name.replace("model.", "model.language_model.", 1) for name in part.hf)
    return msgspec.structs.replace(part, hf=tuple(names))
