"""Weights of checkpoints in Megatron's format, whoever wrote them, and their optimizer's moments.

megatron-core names tensors in two ways, one for all layers or one for each; the names in a
checkpoint say which of the two it uses, and megatron-core itself says for either what this rank
holds (`placement`). Numbers of another float type are converted, and rows that only pad the
vocabulary are passed over. Refused, with nothing changed: a checkpoint that lacks a tensor, has one
of another shape or one that the model does not know.

A weight may lie there in pieces, as slime's delta nets do (`pieces`).

Moments lie in it weight by weight, as Megatron writes them for every layout, or not at all, or in
buckets that the layout alone understands that wrote them: then the optimizer is new, which is told.
Moments that lie flat, shard by shard, as earlier releases of Megatron wrote them
(`fully_sharded_model_space`), are refused: Megatron does not read them any more either.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from agentrl.config.torch_dist import WITHOUT_OPTIMIZER, Header, Index
from agentrl.errors import ConfigError, DataError
from agentrl.learner.megatron import placement, shards
from agentrl.learner.megatron.optimizer import Optimizer
from agentrl.learner.megatron.pieces import as_there
from agentrl.learner.megatron.placement import Shard
from agentrl.learner.megatron.state import in_turns, together
from agentrl.models.norm_names import with_our_names
from agentrl.models.registry import Model

__all__ = ["content_of", "load_optimizer", "load_weights", "require_all"]

log = logging.getLogger(__name__)

#: Layers of multi-token prediction are numbered in both ways.
_OF_ONE_LAYER = re.compile(r"^decoder\.layers\.\d+\.")
_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
#: What an optimizer may call the float32 copy of a weight: here, and where it is distributed. Of a
#: weight that is itself in float32 it has none.
_COPY, _DISTRIBUTED_COPY = "optimizer.state.fp32_param.", "optimizer.state.param."
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def content_of(index: Index) -> dict[str, Any]:
    """How megatron-core was told to name the tensors of `index`."""
    return {"non_homogeneous_layers": any(map(_OF_ONE_LAYER.search, index))}


def load_weights(
    folder: Path, index: Index, model: Any, described: Model, without: str = ""
) -> None:
    """Take the weights of `model`, which is `described`, from `folder`, which holds `index`, but
    for those whose keys begin with `without`. Collective; raises ConfigError, and DataError for a
    file that does not hold what the index says: then the weights are neither the old nor the new
    ones."""
    if without:
        index = {key: whole for key, whole in index.items() if not key.startswith(without)}
    parts = placement.parts(model, content_of(index))
    names = together(lambda: sorted(placement.keys(parts)))
    index = with_our_names(index, set(chain.from_iterable(names)))
    own = (
        shard
        for parameter, made_of in parts.items()
        for shard in placement.shards(made_of, parameter.detach().view(-1), 0)
        if not (without and shard.key.startswith(without))
    )
    wanted = as_there(own, index, described)

    def look() -> list[str]:
        _require(folder, index, wanted)
        return sorted({shard.key for shard in wanted})

    _refuse_unknown(folder, index, set(chain.from_iterable(together(look))))
    in_turns(lambda: shards.read(folder, index, wanted))


def load_optimizer(
    folder: Path, header: Header, model: Any, optimizer: Optimizer, described: Model
) -> bool:
    """Go on with the moments that `folder` has for the weights of `model`, which is `described` and
    whose schedule begins anew. False: it has none that can be read, and the optimizer stays new.
    Collective; raises as `load_weights`."""
    if not header.state or header.steps is None:
        form = "without the number of its steps" if header.state else "not in it"
        form = "in buckets of the layout that wrote it" if header.bound else form
        log.warning("%s: its optimizer is %s, so that of this run is new", folder, form)
        return False
    parts = placement.parts(model, content_of(header.tensors))
    weights = with_our_names(header.tensors, placement.keys(parts))
    index = with_our_names(header.state, placement.keys(parts))
    copies = {key.removeprefix(_DISTRIBUTED_COPY): each for key, each in index.items()}
    index = {_COPY + key: copies.get(key, each) for key, each in weights.items()} | index
    own = (
        shard
        for held in optimizer.held()
        for name, memory in held.tensors.items()
        for shard in placement.shards(
            parts[held.parameter],
            memory,
            held.start,
            prefix=f"optimizer.state.{name}.",
            is_cut=held.is_cut,
        )
    )
    wanted = as_there(own, index, described)

    def look() -> None:
        _refuse_flat(folder, header)
        try:
            _require(folder, index, wanted)
        except ConfigError as error:
            raise ConfigError(f"{error}; {WITHOUT_OPTIMIZER}") from None

    def take() -> None:
        try:
            shards.read(folder, index, wanted)
        except DataError as error:
            raise DataError(f"{error}; {WITHOUT_OPTIMIZER}") from None

    together(look)
    in_turns(take)
    optimizer.resume(header.steps, header.steps)
    return True


def require_all(folder: Path, index: Index, wanted: Sequence[Shard]) -> None:
    """ConfigError unless `index` has what `wanted` need, and nothing else."""
    _require(folder, index, wanted)
    _refuse_unknown(folder, index, {shard.key for shard in wanted})


def _refuse_unknown(folder: Path, index: Index, known: set[str]) -> None:
    if unknown := sorted(index.keys() - known):
        raise ConfigError(
            f"{folder} is of another model: it has {len(unknown)} tensors that the run does not"
            f" know, such as {unknown[0]}"
        )


def _refuse_flat(folder: Path, header: Header) -> None:
    """ConfigError where a moment has the elements of its weight in another shape: the number of
    shards in each dimension of the weight, and the elements of a shard."""
    for key, moment in header.state.items():
        weight = header.tensors.get(key.removeprefix("optimizer.state.exp_avg."))
        if (
            weight is not None
            and moment.shape != weight.shape
            and len(moment.shape) == len(weight.shape) + 1
            and prod(moment.shape) == prod(weight.shape)
        ):
            raise ConfigError(
                f"{folder} has its optimizer in the form fully_sharded_model_space: {key} has shape"
                f" {moment.shape}, and its weight {weight.shape}. Megatron does not read this form"
                " any more; save it as fully_reshardable with the Megatron that wrote it, or give"
                " --no-load-optim, which takes the weights alone"
            )


def _require(folder: Path, index: Index, wanted: Iterable[Shard]) -> None:
    for shard in wanted:
        whole = index.get(shard.key)
        if whole is None:
            raise ConfigError(
                f"{folder} is of another model: it lacks {shard.key} of shape {shard.whole}"
            )
        rows = shard.whole[0]
        if shard.key.endswith(_VOCABULARY):
            rows = max(rows, whole.shape[0] if whole.shape else 0)
        if whole.shape != (rows, *shard.whole[1:]) or whole.dtype not in _FLOATS:
            raise ConfigError(
                f"{folder} is of another model: {shard.key} has shape {whole.shape} in"
                f" {whole.dtype} there, and {shard.whole} in the run"
            )
