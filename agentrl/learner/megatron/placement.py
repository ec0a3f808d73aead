"""Where the memory of this rank lies in the whole tensors of a checkpoint.

megatron-core says for each parameter which part of which whole tensor it is (`sharded_state_dict`).
The distributed optimizer cuts parameters up further, as flat ranges that end anywhere in a row; as
boxes they fit torch's format. So each rank writes just what it holds, nothing is gathered, and any
other layout reads the boxes that overlap its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Tensor

from agentrl.learner.megatron.boxes import cut

__all__ = ["CONTENT", "Shard", "parts", "shards"]

#: How megatron-core names and cuts the tensors; its own loaders are told so.
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


def parts(model: Any) -> dict[Any, list[Any]]:
    """For each parameter of this rank's model the ShardedTensors it is made of, one after the
    other in its memory."""
    found: dict[Any, list[Any]] = {}
    parameters = set(model.parameters())
    for entry in nested_values(model.sharded_state_dict(metadata=dict(CONTENT))):
        if entry.data in parameters:
            is_made_of_several = isinstance(entry, ShardedTensorFactory)
            found[entry.data] = entry.build() if is_made_of_several else [entry]
    assert found.keys() == parameters
    for parameter, made_of in found.items():
        assert all(isinstance(part, ShardedTensor) for part in made_of)
        assert sum(prod(part.local_shape) for part in made_of) == parameter.numel()
    return found


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
