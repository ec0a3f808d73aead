"""Where the memory of this rank lies in the whole tensors of a checkpoint.

megatron-core says for each parameter which part of which whole tensor it is (`sharded_state_dict`).
The distributed optimizer cuts parameters up further, as flat ranges that end anywhere in a row; as
boxes they fit torch's format. So each rank writes just what it holds, nothing is gathered, and any
other layout reads the boxes that overlap its own.

A vocabulary that is padded for its ranks is without the padding here: no checkpoint has it and no
export, so that any layout reads any other's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Tensor

from agentrl.learner.megatron.boxes import cut
from agentrl.learner.megatron.value_head import HEAD, has_value_head

__all__ = ["CONTENT", "Shard", "keys", "parts", "shards"]

#: How megatron-core names and cuts the tensors of our checkpoints: each layer has its own. Its own
#: loaders are told so.
CONTENT = {"non_homogeneous_layers": True}


@dataclass(frozen=True, slots=True)
class Shard:
    """A box of the whole tensor `key`, of shape `whole`, and the memory of this rank that holds it.

    offset: of the box in the whole. tensor: a contiguous view with the shape of the box, written in
    place on loading. written: whether this rank's copy is the one to save.
    """

    key: str
    whole: tuple[int, ...]
    offset: tuple[int, ...]
    tensor: Tensor
    written: bool


def parts(model: Any, content: Mapping[str, Any] = CONTENT) -> dict[Any, list[Any]]:
    """For each parameter of this rank's model, and each buffer that a checkpoint has, the
    ShardedTensors it is made of, one after the other in its memory. What is behind them there is
    padding. `content`: how a checkpoint names and cuts its tensors."""
    found: dict[Any, list[Any]] = {}
    kept = set(filter(torch.is_tensor, model.state_dict(keep_vars=True).values()))
    for entry in nested_values(model.sharded_state_dict(metadata=dict(content))):
        if entry.data in kept:
            is_made_of_several = isinstance(entry, ShardedTensorFactory)
            found[entry.data] = entry.build() if is_made_of_several else [entry]
    assert found.keys() == kept
    for tensor, made_of in found.items():
        assert all(isinstance(part, ShardedTensor) for part in made_of)
        assert sum(prod(part.local_shape) for part in made_of) == tensor.numel()
        is_of_values = made_of[0].key.startswith(HEAD) and has_value_head(model[-1])
        # So megatron-core marks rows of the vocabulary, and whatever is called an output layer.
        if made_of[0].allow_shape_mismatch and not is_of_values:
            _leave_padding_out(made_of[0], model.vocab_size)
    return found


def keys(found: Mapping[Any, list[Any]]) -> set[str]:
    """The names of the whole tensors that `parts` found."""
    return {part.key for made_of in found.values() for part in made_of}


def _leave_padding_out(part: Any, num_rows: int) -> None:
    first = part.global_offset[0]
    part.local_shape = (min(part.local_shape[0], num_rows - first), *part.local_shape[1:])
    part.global_shape = (num_rows, *part.global_shape[1:])


def shards(
    made_of: list[Any], memory: Tensor, start: int, *, prefix: str = "", is_cut: bool = False
) -> Iterator[Shard]:
    """Shards of a parameter that is `made_of` those parts, of which the flat `memory` holds the
    elements from `start`. `is_cut`: data-parallel ranks hold different elements, not copies."""
    stop = start + memory.numel()
    first = 0
    for part in made_of:
        last = first + prod(part.local_shape)
        low, high = max(start, first), min(stop, last)
        if low < high:
            # Copies are counted per axis of the layout, the data-parallel one last.
            copies = part.replica_id[:-1] if is_cut else part.replica_id
            shape = (1,) * part.prepend_axis_num + tuple(part.local_shape)
            at = low - start
            for offset, sizes in cut(shape, low - first, high - first):
                yield Shard(
                    key=prefix + part.key,
                    whole=tuple(part.global_shape),
                    offset=tuple(o + g for o, g in zip(offset, part.global_offset, strict=True)),
                    tensor=memory[at : at + prod(sizes)].view(sizes),
                    written=not any(copies),
                )
                at += prod(sizes)
        first = last
