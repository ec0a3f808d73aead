"""Weights of checkpoints in Megatron's format, whoever wrote them: no optimizer, no generators.

megatron-core names tensors in two ways, one for all layers or one for each; which of the two a
checkpoint has, its names tell, and megatron-core itself says for either what this rank holds
(`placement`). Numbers of another float type are converted, and rows that only pad the vocabulary
are passed over. Refused, with nothing changed: a checkpoint that lacks a tensor, has one of another
shape or one that the model does not know.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from agentrl.config.torch_dist import Index
from agentrl.errors import ConfigError
from agentrl.learner.megatron import placement, shards
from agentrl.learner.megatron.placement import Shard
from agentrl.learner.megatron.state import together

__all__ = ["content_of", "load_weights", "require_all"]

_OF_ONE_LAYER = re.compile(r"\.layers\.\d+\.")
_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def content_of(index: Index) -> dict[str, Any]:
    """How megatron-core was told to name the tensors of `index`."""
    return {"non_homogeneous_layers": any(map(_OF_ONE_LAYER.search, index))}


def load_weights(folder: Path, index: Index, model: Any, without: str = "") -> None:
    """Take the weights of `model` from `folder`, which holds `index`, but for those whose keys
    begin with `without`. Collective; raises ConfigError, and DataError for a file that does not
    hold what the index says: then the weights are neither the old nor the new ones."""
    if without:
        index = {key: whole for key, whole in index.items() if not key.startswith(without)}
    parts = placement.parts(model, content_of(index))
    wanted = [
        shard
        for parameter, made_of in parts.items()
        for shard in placement.shards(made_of, parameter.detach().view(-1), 0)
        if not (without and shard.key.startswith(without))
    ]

    def look() -> list[str]:
        _require(folder, index, wanted)
        return sorted({shard.key for shard in wanted})

    _refuse_unknown(folder, index, set(chain.from_iterable(together(look))))
    together(lambda: shards.read(folder, index, wanted))


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


def _require(folder: Path, index: Index, wanted: Iterable[Shard]) -> None:
    for shard in wanted:
        whole = index.get(shard.key)
        if whole is None:
            raise ConfigError(
                f"{folder} is of another model: it lacks {shard.key} of shape {shard.whole}"
            )
        rows = shard.whole[0]
        if shard.key in _VOCABULARY:
            rows = max(rows, whole.shape[0] if whole.shape else 0)
        if whole.shape != (rows, *shard.whole[1:]) or whole.dtype not in _FLOATS:
            raise ConfigError(
                f"{folder} is of another model: {shard.key} has shape {whole.shape} in"
                f" {whole.dtype} there, and {shard.whole} in the run"
            )
