"""Weights that a checkpoint of slime's has as the Hugging Face tensors that they are made of
(`agentrl.models.slime_names`): a shard of such a weight is read as rows of several tensors.

Which rows they are says the family, by its split of a tensor of row numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import torch

from agentrl.config.torch_dist import Index
from agentrl.learner.megatron.placement import Shard
from agentrl.models.registry import Model
from agentrl.models.slime_names import made_of

__all__ = ["as_there", "types_of"]

#: How the names of what an optimizer keeps begin.
_OF_OPTIMIZER = re.compile(r"optimizer\.state\.\w+\.")


def as_there(shards: Iterable[Shard], index: Index, model: Model) -> list[Shard]:
    """`shards` of `model` by the names that `index` has: those of a weight that lies there in
    pieces stand for its rows, which share its memory."""
    found: list[Shard] = []
    for shard in shards:
        before = start[0] if (start := _OF_OPTIMIZER.match(shard.key)) else ""
        key = shard.key.removeprefix(before)
        if names := made_of(key, index, model.family, before):
            renamed = {hf: before + name for hf, name in names.items()}
            found += sorted(_in_pieces(shard, key, renamed, model), key=lambda each: each.key)
        else:
            found.append(shard)
    return found


def types_of(keys: Iterable[str], index: Index, model: Model) -> dict[str, torch.dtype]:
    """The types that the weights `keys` have there; one in pieces has a type that rounds none."""
    found = {}
    for key in keys:
        pieces = made_of(key, index, model.family).values() or [key]
        kinds = (getattr(torch, index[piece].dtype) for piece in pieces)
        found[key] = reduce(torch.promote_types, kinds)
    return found


def _in_pieces(shard: Shard, key: str, names: Mapping[str, str], model: Model) -> Iterator[Shard]:
    """A shard for each run of rows that follow one another in one of the tensors."""
    rows = _rows_of(key, shard.whole[0], len(shard.whole), model)
    size = sum(len(numbers) for numbers in rows.values())
    owner, row = torch.empty(2, size, dtype=torch.int64)
    for number, numbers in enumerate(rows.values()):
        owner[numbers], row[numbers] = number, torch.arange(len(numbers))
    here = slice(shard.offset[0], shard.offset[0] + shard.tensor.shape[0])
    owner, row = owner[here], row[here]
    is_cut = (owner.diff() != 0) | (row.diff() != 1)
    ends = [0, *(is_cut.nonzero().flatten() + 1).tolist(), len(owner)]
    tensors = list(rows.items())
    for start, stop in pairwise(ends):
        hf, numbers = tensors[int(owner[start])]
        yield replace(
            shard,
            key=names[hf],
            whole=(len(numbers), *shard.whole[1:]),
            offset=(int(row[start]), *shard.offset[1:]),
            tensor=shard.tensor[start:stop],
        )


def _rows_of(key: str, num_rows: int, axes: int, model: Model) -> dict[str, torch.Tensor]:
    """Of each Hugging Face tensor that `key` is made of: which of its rows each row is."""
    named = model.family.named(key)
    assert named is not None
    whole = torch.arange(num_rows, device="cpu").view(-1, *[1] * (axes - 1))
    found: dict[str, list[torch.Tensor]] = {}
    for hf, piece in zip(named.hf, named.split(whole, model.architecture), strict=True):
        assert piece.axis == 0
        found.setdefault(hf, []).append(piece.view.reshape(-1))
    return {hf: torch.cat(parts) for hf, parts in found.items()}
