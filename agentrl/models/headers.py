"""Whether weights in a folder are those of a model, judged by headers alone, in a moment.

Of a checkpoint in Megatron's format, or of ours: the arguments that it was written under, and the
names, types and shapes of its tensors. Of a Hugging Face model: the same of its files. All that
differs is told, with both values. Nothing heavy is imported: shapes are those that config.json
implies (`shapes`). A family of somebody else's may have tensors that are not known there; these the
learner compares.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from agentrl.config.torch_dist import Header
from agentrl.config.weights import FLOATS, Shapes, read_shapes, read_types
from agentrl.errors import ConfigError
from agentrl.models.family import Family
from agentrl.models.norm_names import with_our_names
from agentrl.models.registry import Model
from agentrl.models.shapes import is_complete, shapes_of, wholes_of
from agentrl.models.slime_names import has_slimes_modules, made_of
from agentrl.models.stacks import taken_apart
from agentrl.visible import visible

__all__ = ["check_header", "check_model", "check_passengers", "check_types", "without_mtp"]

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_OF_ONE_LAYER = re.compile(r"^decoder\.layers\.\d+\.")
_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
#: What a file may have or lack: a head that is tied, and rotary tables.
_TABLES = ("lm_head.weight", "rotary_emb.inv_freq")
#: Tensors that are told; more of them say nothing more. Fields are told all.
_MAX_TOLD = 12
#: Of a field, whose value there may be any text.
_MAX_CHARACTERS = 200


def check_header(folder: Path, header: Header, model: Model) -> None:
    """Raise ConfigError unless the checkpoint in `folder` has the weights of `model`."""
    fields = model.architecture.written_otherwise(header.arguments)
    _refuse(folder, "is of another model", fields, _tensors_otherwise(header, model))


def without_mtp(header: Header) -> Header:
    """What a model that has no layers of multi-token prediction reads of a checkpoint."""
    kept = {key: whole for key, whole in header.tensors.items() if not key.startswith("mtp.")}
    return msgspec.structs.replace(header, tensors=kept)


def check_model(folder: Path, model: Model, given: Model) -> None:
    """Raise ConfigError unless the Hugging Face model in `folder`, which its config.json says is
    `given`, has the weights of `model`."""
    fields = model.architecture.differences(given.architecture)
    what = "is another model than --hf-checkpoint" if fields else "does not fit its config.json"
    _refuse(folder, what, fields, _weights_otherwise(read_shapes(folder), model))


def check_types(folder: Path) -> None:
    """Raise ConfigError for weights that are no floats, such as those of a quantized model."""
    if other := _no_floats(folder):
        raise ConfigError(
            f"{folder} has {_some(other)}; a learner begins with {', '.join(FLOATS)}: give --load "
            "or --ref-load a model or a checkpoint in one of these types"
        )


def check_passengers(folder: Path, model: Model) -> None:
    """Raise ConfigError for tensors that models of `model` would be saved with as they lie in
    `folder`, and that are no floats: what is saved is not quantized, so they would not fit in."""
    if other := _no_floats(folder, model.is_passenger):
        raise ConfigError(
            f"{folder} has {_some(other)}: no layer here has these tensors, so a model that is "
            "saved would have them as they are there, quantized beside weights that are not; name "
            f"the same model in {', '.join(FLOATS)} in its place"
        )


def _no_floats(folder: Path, which: Callable[[str], bool] = lambda _: True) -> list[str]:
    types = read_types(folder)
    return [f"{name} in {t}" for name, t in types.items() if t not in FLOATS and which(name)]


def _weights_otherwise(theirs: Shapes, model: Model) -> Iterator[str]:
    """What the tensors of a Hugging Face model are, and those of `model` are not."""
    ours = shapes_of(model)
    stacks = model.family.stacks
    apart = (taken_apart(name, shape, stacks) for name, shape in theirs.items())
    theirs = {each.name: each.shape for pieces in apart for each in pieces}
    for name, shape in ours.items():
        if (found := theirs.get(name)) is None:
            yield f"no {name}"
        elif found != shape:
            yield f"{name} of shape {found}, not {shape}"
    if is_complete(model.family):
        for name in theirs.keys() - ours.keys():
            if not name.endswith(_TABLES) and not model.is_passenger(name):
                yield f"{name}, which a {model.architecture.name} of these sizes has not"


def _tensors_otherwise(header: Header, model: Model) -> Iterator[str]:
    """What the tensors of a checkpoint are, and those of `model` are not."""
    family, wholes, found = model.family, wholes_of(model), set()
    named = {*wholes, *(_OF_ONE_LAYER.sub("decoder.layers.", key) for key in wholes)}
    there = with_our_names(header.tensors, named)
    pieces = _in_pieces(wholes, there, model)
    for key, whole in there.items():
        keys = list(_apart(family, key, whole.shape))
        found.update(keys)
        known = [wholes[each] for each in keys if each in wholes]
        is_unknown = key not in pieces and any(family.named(each) is None for each in keys)
        if is_unknown or (not known and is_complete(family)):
            yield f"{key}, which a {model.architecture.name} of these sizes has not"
        elif whole.dtype not in _FLOATS:
            yield f"{key} in {whole.dtype}, which is no type of weights"
        elif known and not _fits(key, whole.shape, known[0]):
            rest = len(whole.shape) - len(known[0])
            wanted = (*whole.shape[:rest], *known[0])
            yield f"{key} has shape {whole.shape} in {whole.dtype} there, and {wanted} in the run"
    yield from (f"no {key}" for key in wholes.keys() - found if not _is_tied(key, model))


def _in_pieces(wholes: Shapes, there: Iterable[str], model: Model) -> set[str]:
    """Put the tensors that a weight is made of into its place in `wholes`, where slime's modules
    have them; the names of these tensors."""
    if not has_slimes_modules(names := set(there)):
        return set()
    shapes = shapes_of(model)
    found: set[str] = set()
    for key in wholes.keys() - names:
        if pieces := made_of(key, names, model.family):
            del wholes[key]
            wholes.update({name: shapes[hf] for hf, name in pieces.items()})
            found.update(pieces.values())
    return found


def _is_tied(key: str, model: Model) -> bool:
    return key == "output_layer.weight" and model.architecture.tied_embeddings


def _fits(key: str, theirs: tuple[int, ...], ours: tuple[int, ...]) -> bool:
    """Axes of layers and experts come first; rows that pad the vocabulary are passed over."""
    mine = theirs[len(theirs) - len(ours) :]
    if key in _VOCABULARY:
        return mine[0] >= ours[0] and mine[1:] == ours[1:]
    return mine == ours


def _apart(family: Family, key: str, shape: tuple[int, ...]) -> Iterator[str]:
    """The names of single tensors in one that may be that of all layers, of all experts or of
    both."""
    if ".layers." in key and not key.split(".layers.")[1].split(".")[0].isdecimal():
        for layer in range(shape[0] if shape else 0):
            numbered = key.replace(".layers.", f".layers.{layer}.", 1)
            yield from _apart(family, numbered, shape[1:])
    elif family.named(key) is None and ".experts." in key:
        for expert in range(shape[0] if shape else 0):
            yield f"{key}.{expert}"
    else:
        yield key


def _refuse(folder: Path, what: str, fields: list[str], tensors: Iterable[str]) -> None:
    fields = [f"{each:.{_MAX_CHARACTERS}}" for each in fields]
    if differing := [*fields, *filter(None, [_some(sorted(tensors))])]:
        raise ConfigError(f"{folder} {what}: it has {visible(', '.join(differing))}")


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_TOLD
    return ", ".join(names[:_MAX_TOLD]) + (f" and {more} more" if more > 0 else "")
