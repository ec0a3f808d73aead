"""What a model family is: a reader of its config.json, and a table of its tensors.

The table says what a tensor of megatron-core is made of, never where its shares lie: that says
megatron-core itself (`learner/megatron/weights.py`). Its name is the one in megatron-core's
checkpoints with layers of Transformer Engine; local layers name some norms otherwise
(`norm_names`). A part whose tensor a model lacks (a bias, a head that is tied) means nothing for
it, so a table may serve many models.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentrl.models.architecture import Architecture
from agentrl.models.stacks import Stacks

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Family",
    "Named",
    "Part",
    "TensorPiece",
    "behind_the_layers",
    "halves",
    "in_layer",
    "plain",
    "qkv",
    "swapped_columns",
]


class TensorPiece(NamedTuple):
    """A Hugging Face tensor, or a part of one, in a whole tensor: a view, and the shape on disk.
    `axis`: along which of its axes pieces of one tensor follow one another; rows, unless said."""

    view: "Tensor"
    shape: tuple[int, ...]
    axis: int = 0

    def behind(self, before: tuple[int, ...] | None) -> tuple[int, ...]:
        """The shape of a tensor of shape `before`, None where there is nothing yet, and this."""
        if before is None:
            return self.shape
        sizes = list(before)
        sizes[self.axis] += self.shape[self.axis]
        return tuple(sizes)


#: The Hugging Face tensors within a whole tensor, as views of its memory: they are written to load
#: it and read to export it, so there is no second rule for the way back.
Split = Callable[["Tensor", Architecture], list[TensorPiece]]


def plain(whole: "Tensor", _: Architecture) -> list[TensorPiece]:
    """The tensor itself."""
    return [TensorPiece(whole, tuple(whole.shape))]


def halves(whole: "Tensor", _: Architecture) -> list[TensorPiece]:
    """Two tensors of equal size, one after the other: gate and up projection."""
    return [TensorPiece(half, tuple(half.shape)) for half in whole.chunk(2)]


def qkv(whole: "Tensor", architecture: Architecture) -> list[TensorPiece]:
    """Queries, keys and values, which lie together for each key-value head."""
    groups, width = architecture.num_query_groups, architecture.kv_channels
    rest = tuple(whole.shape[1:])
    rows = [architecture.num_attention_heads // groups * width, width, width]
    views = whole.view(groups, -1, *rest).split_with_sizes(rows, 1)
    return [
        TensorPiece(view, (groups * size, *rest)) for view, size in zip(views, rows, strict=True)
    ]


def swapped_columns(whole: "Tensor", _: Architecture) -> list[TensorPiece]:
    """One tensor, whose columns of the second half stand first on disk."""
    first, second = whole.chunk(2, 1)
    return [TensorPiece(half, tuple(half.shape), axis=1) for half in (second, first)]


class Part(msgspec.Struct, frozen=True):
    """One tensor of megatron-core, `key`, and the Hugging Face tensors that it is made of, one name
    for each piece: pieces of one name are its rows, one after the other. `{layer}` stands for the
    number of the layer in both. megatron-core's tensor of all experts is one for each here, and its
    key ends in `.{expert}`; without this ending it is one, and its first axis is that of the
    experts."""

    key: str
    hf: tuple[str, ...]
    split: Split = plain


def in_layer(key: str, *hf: str, split: Split = plain) -> Part:
    """A part of each layer, by its names within the layer."""
    names = tuple("model.layers.{layer}." + name for name in hf)
    return Part("decoder.layers.{layer}." + key, names, split)


def behind_the_layers(name: str, architecture: Architecture) -> bool:
    """Tensors of layers that follow those of the decoder and are counted with them."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= architecture.num_layers


class Named(NamedTuple):
    """A tensor of a model: the names it has on disk, its split, and its place in the order."""

    hf: tuple[str, ...]
    split: Split
    order: tuple[int, ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models.

    architectures   Hugging Face names, as config.json gives them
    read            config.json to `Architecture`; ConfigError for a feature that the model here
                    would not compute, by its key. A KeyError tells what the file lacks
    parts           its tensors; those of a layer stand together
    is_passenger    whether a tensor of the checkpoint, by its name, belongs to layers that are not
                    built here (multi-token prediction, eyes): it is neither trained nor pushed, and
                    goes into every model that is saved as it was
    mtp             tensors of a layer of multi-token prediction, as `mtp_parts` lists them; none:
                    such layers are not trained
    stacks          tensors on disk that may stand in the place of those of all experts
    engine_fused    parameters of SGLang's model that are several Hugging Face modules in one;
                    `{expert}` in a name is the number of the expert
    engine_class    `module:class` of SGLang's model, which spares an engine on a CPU host the
                    import of all models that SGLang ships
    engine_window   whether SGLang's model has the sliding window of its config.json; otherwise
                    contexts must fit into it
    engine_ranks    whether attention can be data-parallel in SGLang's model: it shares heads out
                    over the ranks of a group, not over all that an engine has
    engine_digests  whether SGLang's parameters have the rows of the checkpoint's tensors and their
                    type, so that --check-weight-update-equal can tell their digests
    exact           whether it was compared, bit by bit, with SGLang's under --true-on-policy-mode
    defaults        what keys mean that config.json leaves out, as far as the model's configuration
                    class in transformers has values of its own for them: engines go by it
    chat_formats    each `--chat-format` that instructed members were trained on: which of them, the
                    files of a member say (`spoken_format`)
    tiny            config.json of a member small enough for tests
    """

    name: str
    architectures: tuple[str, ...]
    read: Callable[[dict[str, Any]], Architecture]
    parts: tuple[Part, ...]
    is_passenger: Callable[[str, Architecture], bool] | None = None
    mtp: tuple[Part, ...] = ()
    stacks: Stacks = {}
    engine_fused: Mapping[str, tuple[str, ...]] = {}
    engine_class: str | None = None
    engine_window: bool = False
    engine_ranks: bool = False
    engine_digests: bool = True
    exact: bool = False
    defaults: Mapping[str, Any] = {}
    chat_formats: tuple[str, ...] = ()
    tiny: Mapping[str, Any] = {}

    def named(self, key: str) -> Named | None:
        """What the table says of a tensor; None when it says nothing."""
        first = next((i for i, part in enumerate(self.parts) if "{layer}" in part.key), 0)
        for index, part in enumerate(self.parts):
            if found := _pattern(part.key).fullmatch(key):
                numbers = {name: int(number) for name, number in found.groupdict().items()}
                names = tuple(name.format(**numbers) for name in part.hf)
                inside = (first, numbers["layer"]) if "layer" in numbers else ()
                expert = (numbers["expert"],) if "expert" in numbers else ()
                return Named(names, part.split, (*inside, index, *expert))
        return None


@functools.cache
def _pattern(key: str) -> re.Pattern[str]:
    """What a part's key stands for. Models have tens of thousands of tensors."""
    return re.compile(re.sub(r"\\{(layer|expert)\\}", r"(?P<\1>\\d+)", re.escape(key)))
