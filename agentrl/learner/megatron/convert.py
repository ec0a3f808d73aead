"""Weights from one form into another, by one process and without a GPU.

    a Hugging Face model                     -> Megatron's format
    Megatron's format, or a run's checkpoint -> a Hugging Face model, or Megatron's format

Nothing is computed and the model has no memory: megatron-core is asked which tensors it has, and
they pass one by one, so that one whole tensor is held, or the file of a Hugging Face model that is
being written. A checkpoint that was written in any layout is read, and what is written is read in
any. Each tensor keeps its type; one of Megatron's that is made of several of another form has a
type that rounds none of them. The target is written as a whole or not at all; what is there already
is replaced only by `is_forced`.
"""

import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from agentrl import disk
from agentrl.config.first_weights import holds_megatron, holds_model
from agentrl.config.megatron import MegatronSettings
from agentrl.config.places import checkpoints_of
from agentrl.config.torch_dist import (
    TRACKER,
    Index,
    folder_of,
    is_weight,
    read_header,
    read_index,
)
from agentrl.errors import ConfigError
from agentrl.learner.checkpoints import newest_valid
from agentrl.learner.folders import replaced
from agentrl.learner.megatron import compat, parallel, placement, shards
from agentrl.learner.megatron.foreign import content_of, require_all
from agentrl.learner.megatron.hf_weights import (
    StoredTensors,
    passengers,
    write_checkpoint,
)
from agentrl.learner.megatron.model import build_model, transformer_config
from agentrl.learner.megatron.mtp import MTP
from agentrl.learner.megatron.pieces import as_there, types_of
from agentrl.learner.megatron.placement import Shard
from agentrl.learner.megatron.weights import Weights
from agentrl.models.headers import check_header
from agentrl.models.mtp import with_mtp
from agentrl.models.norm_names import with_our_names
from agentrl.models.registry import Model, open_model
from agentrl.paths import kind_of

__all__ = ["Form", "built", "convert"]

Form = Literal["hf", "torch_dist"]

#: Parameters, and the parts of megatron-core's whole tensors that each is made of.
_Parts = dict[Any, list[Any]]

#: Its type is told as the model's; every model has one.
_EMBEDDING = "embedding.word_embeddings.weight"


def convert(
    source: Path,
    target: Path,
    model_dir: Path,
    to: Form,
    *,
    family: str | None = None,
    is_forced: bool = False,
    max_file_bytes: int = 4 << 30,
    mtp: str | None = None,
) -> None:
    """Write the weights at `source` to `target` in the form `to`. `model_dir` has the model's
    config.json, and the tokenizer that goes into a Hugging Face model. `mtp`: the flag that asks
    for those of a Hugging Face model's layers of multi-token prediction too; a checkpoint says
    itself. Raises ConfigError for what is no source or of another model, or for no place to write
    to, and DataError for a damaged source."""
    _check_target(target, is_forced)
    if max_file_bytes < 1:
        raise ConfigError(f"--chunk-size {max_file_bytes}: a file has 1 byte or more")
    compat.install()
    model = open_model(model_dir, family)
    if holds_model(source):
        if to == "hf":
            raise ConfigError(f"{source} is a Hugging Face model already")
        model = with_mtp(model, mtp) if mtp else model
        with (
            built(model) as (whole, weights),
            StoredTensors(
                source, weights.shapes, model.is_passenger, model.family.stacks
            ) as tensors,
        ):
            parts = placement.parts(whole)
            _keep_types(parts, _types_of_model(parts, weights, tensors.types()))
            _write_torch_dist(target, _of_model(parts, weights, tensors), whole.arguments)
        return
    folder, index, model = _opened(source, model)
    with built(model) as (whole, weights):
        parts = placement.parts(whole, content_of(index))
        index = with_our_names(index, placement.keys(parts))
        own = (shard for p in parts for shard in _shards(parts[p], _flat(p), 0))
        require_all(folder, index, as_there(own, index, model))
        types = types_of(placement.keys(parts), index, model)
        _keep_types(parts, types)
        fill = partial(_fill, folder, index, parts, model)
        if to == "torch_dist":
            _write_torch_dist(target, _of_checkpoint(whole, fill), whole.arguments)
        else:
            whole_model = chain(weights.split(fill), _beside(model, model_dir))
            write_checkpoint(target, whole_model, model_dir, types[_EMBEDDING], max_file_bytes)


def _check_target(target: Path, is_forced: bool) -> None:
    """Refuse what a new folder cannot take the place of."""
    whole = target.resolve()
    for place in (whole, *whole.parents):
        if (kind := kind_of(place)) not in ("a directory", "nothing"):
            raise ConfigError(f"{target} cannot be a folder: {place} is {kind}; name another one")
    if whole in (here := Path.cwd(), *here.parents):
        raise ConfigError(
            f"{target} is the working directory or a folder around it, which is not replaced; name "
            "another folder"
        )
    if whole.exists() and any(whole.iterdir()) and not is_forced:
        raise ConfigError(f"{target} is there already; name another folder, or remove it")


def _types_of_model(
    parts: _Parts, weights: Weights, types: Mapping[str, torch.dtype]
) -> dict[str, torch.dtype]:
    """The type of each of megatron-core's whole tensors, by its key, that rounds none of the
    Hugging Face tensors that it is made of, which have `types`."""
    found: dict[str, set[torch.dtype]] = defaultdict(set)
    for parameter, names in weights.made_of():
        for part in parts[parameter]:
            found[part.key].update(types[name] for name in names)
    return {key: reduce(torch.promote_types, each) for key, each in found.items()}


def _keep_types(parts: _Parts, types: Mapping[str, torch.dtype]) -> None:
    """Give the parameters, which have no memory, the type of what they will be read from."""
    for parameter, made_of in parts.items():
        widest = reduce(torch.promote_types, (types[part.key] for part in made_of))
        parameter.data = parameter.data.to(widest)


def _beside(model: Model, model_dir: Path) -> Iterator[tuple[str, Tensor]]:
    """What no layer here has, as it lies in `model_dir`, where that has weights."""
    if model.family.is_passenger is None or not holds_model(model_dir):
        return iter(())
    return passengers(model_dir, model)


def _opened(source: Path, model: Model) -> tuple[Path, Index, Model]:
    """The folder of the weights at `source`, what is in it, and the model with the layers of
    multi-token prediction that are there."""
    if holds_megatron(source):
        folder = folder_of(source)
        header = read_header(folder)
        model = _with_layers(header.tensors, model)
        check_header(folder, header, model)
        return folder, header.tensors, model
    found = newest_valid(checkpoints_of(source))
    if found is None:
        raise ConfigError(f"{source} holds neither a model nor a checkpoint")
    index = {key: each for key, each in read_index(found.state).items() if is_weight(key)}
    return found.state, index, _with_layers(index, model)


def _with_layers(index: Index, model: Model) -> Model:
    has_layers = any(key.startswith(MTP) for key in index)
    return with_mtp(model) if has_layers and model.family.mtp else model


@contextmanager
def built(model: Model) -> Iterator[tuple[Any, Weights]]:
    """The whole model on one rank, without memory."""
    settings = MegatronSettings()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parallel.open_groups(settings, rank=0, world_size=1, address="127.0.0.1", port=port, seed=0)
    try:
        with torch.device("meta"):
            config = transformer_config(model.architecture, settings)
            learner = build_model(model.architecture, config, torch.device("meta"))
            weights = Weights(learner, model)
        yield learner, weights
    finally:
        parallel.close_groups()


_shards = placement.shards


def _flat(parameter: Any) -> Tensor:
    flat: Tensor = parameter.detach().view(-1)
    return flat


def _of_model(parts: _Parts, weights: Weights, tensors: StoredTensors) -> Iterator[Shard]:
    for parameter, start, values in weights.fused(tensors):
        yield from _shards(parts[parameter], values.reshape(-1), start)


def _of_checkpoint(built: Any, fill: Any) -> Iterator[Shard]:
    for parameter, made_of in placement.parts(built).items():
        values = torch.empty(_flat(parameter).shape, dtype=parameter.dtype)
        fill(parameter, 0, values)
        yield from _shards(made_of, values, 0)


def _fill(
    folder: Path,
    index: Index,
    parts: _Parts,
    model: Model,
    parameter: Any,
    start: int,
    values: Tensor,
) -> None:
    shards.read(folder, index, as_there(_shards(parts[parameter], values, start), index, model))


def _write_torch_dist(target: Path, written: Iterator[Shard], arguments: Mapping[str, Any]) -> None:
    """As Megatron's own tool leaves it: a release, and no iteration."""
    with replaced(target) as partly:
        folder = partly / "release"
        disk.make_folder(folder)
        index = shards.write(folder, 0, written).index
        shards.write_index(folder, [index], arguments, may_lack=lambda _: False)
        disk.write_file(partly / TRACKER, b"release")
