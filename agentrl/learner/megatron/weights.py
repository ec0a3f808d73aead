"""The weights of a model as whole tensors under their Hugging Face names, read and written.

Two authorities, and no third table: megatron-core says which part of which whole tensor each
parameter of this rank is (`placement`), the family says which Hugging Face tensors a whole one is
made of. Loading fills every parameter and refuses a checkpoint that lacks a tensor or has one too
many. Exporting puts each whole tensor together on all ranks. A round trip is bit-equal.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.learner.megatron import parallel, placement
from agentrl.models.family import Split, TensorPiece
from agentrl.models.registry import Model

__all__ = ["Weights"]


class _Box(NamedTuple):
    """A box of a whole tensor, and where this rank keeps it. `is_told`: it is this rank that tells
    the others; those that hold copies do not."""

    parameter: Any
    start: int
    sizes: tuple[int, ...]
    where: tuple[slice, ...]
    is_told: bool

    def memory(self) -> Tensor:
        flat: Tensor = self.parameter.detach().view(-1)
        return flat[self.start : self.start + prod(self.sizes)].view(self.sizes)


class _Whole(NamedTuple):
    """A whole tensor, of which this rank holds `boxes`, maybe none. `told`: the boxes that each
    rank of the replica tells the others, by rank; ranks that tell none are left out."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    hf: tuple[str, ...]
    split: Split
    boxes: list[_Box]
    told: dict[int, list[tuple[slice, ...]]]


class Weights:
    """The weights of `built`, this rank's share of `model`. Made once, for its parameters keep
    their identity; collective.

    Raises ConfigError for a tensor of which the family says nothing, or something impossible.
    """

    def __init__(self, built: Any, model: Model) -> None:
        self._model = model
        self._any = next(built.parameters())
        held = _held(built)
        facts = {
            key: (shape, _name(boxes[0]), [_ends(box) for box in boxes if box.is_told])
            for key, (shape, boxes) in held.items()
        }
        everyone = parallel.all_gather_msgpack(facts)
        self._group = parallel_state.get_model_parallel_group()
        self._ranks = dist.get_process_group_ranks(self._group)
        found = []
        for key, (shape, dtype, _) in {k: v for each in everyone for k, v in each.items()}.items():
            named = model.family.named(key)
            if named is None:
                raise ConfigError(
                    f"model family {model.family.name} says nothing of the tensor {key}, which "
                    "megatron-core has for this model: add a Part to its table"
                )
            told = {
                rank: [tuple(slice(*ends) for ends in box) for box in everyone[rank][key][2]]
                for rank in self._ranks
                if key in everyone[rank] and everyone[rank][key][2]
            }
            boxes = held[key][1] if key in held else []
            whole = _Whole(tuple(shape), getattr(torch, dtype), named.hf, named.split, boxes, told)
            found.append((named.order, whole))
        self._wholes = [whole for _, whole in sorted(found, key=lambda each: each[0])]
        self.shapes = {
            name: (sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:])
            for whole in self._wholes
            for name, pieces in self._on_disk(whole, torch.empty(whole.shape, device="meta"))
        }

    def _on_disk(self, whole: _Whole, tensor: Tensor) -> Iterator[tuple[str, list[TensorPiece]]]:
        """The Hugging Face tensors of a whole `tensor`: name, and its rows in pieces."""
        pieces = whole.split(tensor, self._model.architecture)
        if len(pieces) != len(whole.hf):
            raise ConfigError(
                f"model family {self._model.family.name} has {len(whole.hf)} names "
                f"({', '.join(whole.hf)}) for a tensor that it splits into {len(pieces)} pieces"
            )
        for name, group in groupby(zip(whole.hf, pieces, strict=True), key=lambda each: each[0]):
            yield name, [piece for _, piece in group]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set every parameter of this rank from the full `tensors`, which have the names and shapes
        of `shapes` and may be read lazily."""
        for whole in self._wholes:
            if not whole.boxes:
                continue
            full = torch.empty(whole.shape, dtype=whole.dtype)
            for name, pieces in self._on_disk(whole, full):
                rows = tensors[name].split_with_sizes([piece.shape[0] for piece in pieces])
                for piece, part in zip(pieces, rows, strict=True):
                    piece.view.copy_(part.reshape(piece.view.shape))
            for box in whole.boxes:
                box.memory().copy_(full[box.where])

    @torch.no_grad()
    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors by Hugging Face name, on every rank, in the order of the layers; one whole
        tensor at a time is held in full. Collective: all ranks must exhaust it."""
        for whole in self._wholes:
            for name, pieces in self._on_disk(whole, self._gathered(whole)):
                rows = [piece.view.reshape(piece.shape) for piece in pieces]
                yield name, (rows[0] if len(rows) == 1 else torch.cat(rows)).contiguous()

    def _gathered(self, whole: _Whole) -> Tensor:
        """The whole tensor on every rank. As bytes: not every backend sends every type."""
        mine = [box for box in whole.boxes if box.is_told]
        if list(whole.told) == [dist.get_rank()] and _is_in_order(whole.shape, mine):
            full: Tensor = mine[0].parameter.detach().view(whole.shape)
        else:
            full = torch.empty(whole.shape, dtype=whole.dtype, device=self._any.device)
            for box in mine:
                full[box.where] = box.memory()
        if len(whole.told) == 1:
            (teller,) = whole.told
            dist.broadcast(full.view(-1).view(torch.uint8), teller, group=self._group)
            return full
        sizes = {rank: [full[box].numel() for box in boxes] for rank, boxes in whole.told.items()}
        longest = max(map(sum, sizes.values()))
        sent = full.new_empty(longest)
        start = 0
        for box in mine:
            sent[start : (start := start + prod(box.sizes))] = box.memory().view(-1)
        shares = [torch.empty_like(sent) for _ in self._ranks]
        as_bytes = [share.view(torch.uint8) for share in shares]
        dist.all_gather(as_bytes, sent.view(torch.uint8), group=self._group)
        for rank, share in zip(self._ranks, shares, strict=True):
            boxes = whole.told.get(rank, [])
            parts = share.split_with_sizes([*(own := sizes.get(rank, [])), longest - sum(own)])
            for where, part in zip(boxes, parts, strict=False):
                full[where] = part.view(full[where].shape)
        return full


def _held(built: Any) -> dict[str, tuple[tuple[int, ...], list[_Box]]]:
    """Shape and boxes of each whole tensor of which this rank has a part, by megatron's key."""
    found: dict[str, tuple[tuple[int, ...], list[_Box]]] = {}
    for parameter, made_of in placement.parts(built).items():
        _mark(parameter, made_of)
        start = 0
        for part in made_of:
            sizes = tuple(part.local_shape)
            where = tuple(slice(o, o + n) for o, n in zip(part.global_offset, sizes, strict=True))
            box = _Box(parameter, start, sizes, where, not any(part.replica_id[:-1]))
            found.setdefault(part.key, (tuple(part.global_shape), []))[1].append(box)
            start += prod(sizes)
    return found


def _ends(box: _Box) -> list[tuple[int, int]]:
    return [(axis.start, axis.stop) for axis in box.where]


def _is_in_order(shape: tuple[int, ...], boxes: list[_Box]) -> bool:
    """Whether boxes that are the whole tensor lie in one parameter as they lie in the tensor."""
    row = prod(shape[1:])
    return all(
        box.parameter is boxes[0].parameter
        and box.sizes[1:] == shape[1:]
        and box.start == (box.where[0].start if shape else 0) * row
        for box in boxes
    )


def _mark(parameter: Any, made_of: list[Any]) -> None:
    """Say which parameters are shared out: without it megatron-core, which marks them only when it
    initialises them itself, leaves all but one rank's share out of the gradient norm."""
    axes = [axis for axis, cuts in enumerate(made_of[0].axis_fragmentations) if cuts > 1]
    if axes:
        parameter.tensor_model_parallel = True
        parameter.partition_dim = axes[0]
        parameter.partition_stride = 1


def _name(box: _Box) -> str:
    return str(box.parameter.dtype).removeprefix("torch.")
